"""Classes of which a process has one object."""

from __future__ import annotations

from typing import Any, ClassVar


class SingletonMeta(type):
    """A class with this metaclass is made by its first call; the others return what that one made."""

    _instances: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args, **kwargs)
        return cls._instances[cls]
