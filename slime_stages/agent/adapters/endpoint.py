"""What a protocol is to an adapter: a route, and the two ways of translation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from slime_stages.agent.adapters.sessions import Session
from slime_stages.agent.adapters.turn import Question, Reply


class RequestBody(BaseModel):
    """Fields that are not known are left out, as vendors add new ones."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


Body = TypeVar("Body", bound=RequestBody)
Event = tuple[str | None, Any]
"""Name and data of a server-sent event."""


class Endpoint(ABC, Generic[Body]):
    """One route at which an agent asks for turns."""

    path: ClassVar[str]
    body_type: type[Body]
    ping: ClassVar[bytes] = b": ping\n\n"
    """What a stream may hold that says nothing."""

    @abstractmethod
    def session_id(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """As the headers say, or else the body."""

    @abstractmethod
    def is_streamed(self, body: Body) -> bool: ...

    @abstractmethod
    def question(self, body: Body, session: Session) -> Question:
        """RequestError for what the model cannot be asked."""

    @abstractmethod
    def answer(self, body: Body, reply: Reply) -> dict[str, Any]:
        """The whole answer as one object."""

    @abstractmethod
    def events(self, body: Body, reply: Reply) -> Iterator[Event]:
        """The same answer as it would have come bit by bit."""

    def remember(self, body: Body, session: Session, question: Question, reply: Reply) -> None:
        """Keep what a later request may refer to, before the client can send it."""


def bearer_token(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
