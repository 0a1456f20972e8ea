"""slime's sandbox class, which is made of an image alone."""

from __future__ import annotations

from typing import Any

from slime_stages.agent.sandbox.e2b import E2BSandbox as Sandbox
from slime_stages.agent.sandbox.settings import SandboxSettings


class E2BSandbox(Sandbox):
    """A sandbox at E2B that sees the network, as agents there need it for their adapter."""

    def __init__(self, image: str, **settings: Any) -> None:
        super().__init__(SandboxSettings(image=image, network="host", **settings))
