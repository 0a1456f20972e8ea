"""What an adapter answers when it cannot answer: a status and words, which each protocol puts in its own form."""

from __future__ import annotations

from pydantic import ValidationError


class RequestError(Exception):
    """The client is told, and nothing is recorded."""

    def __init__(self, status: int, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.is_final = is_final
        """Asking again is of no use, though clients usually do after such a status."""


class ClientGone(Exception):
    """The client did not wait for its answer."""


def invalid(message: str) -> RequestError:
    return RequestError(400, message)


def without_images(what: str) -> RequestError:
    return invalid(f"the model is sent no {what}: leave it out, or start the adapter with `omit_images=True`")


def first_problem(error: ValidationError) -> RequestError:
    """The first thing that is wrong with a body, with its place in it."""
    details = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in details["loc"])
    return invalid(f"{place}: {details['msg']}" if place else details["msg"])
