"""What can go wrong because of the world outside our code, each with its exit code and the next thing to type.

SlimeStagesError
├── UsageError         2   the command or the config is wrong
├── DataError         65   a file holds something it must not hold
├── MissingInputError 66   a file that should be there is not
├── InternalError     70   our fault, or a part's that we run
└── RetryableError    75   nothing is lost: type the same command again
"""

from __future__ import annotations


class SlimeStagesError(Exception):
    """Base of every error a user can cause or must act on.

    The message says what is wrong, where, with the values; `hint` is a command or an edit to try.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @staticmethod
    def with_exit_code(exit_code: int, message: str, *, hint: str | None = None) -> SlimeStagesError:
        """The error another process told of, again."""
        kinds = {kind.exit_code: kind for kind in (UsageError, DataError, MissingInputError, RetryableError)}
        return kinds.get(exit_code, InternalError)(message, hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint)


class UsageError(SlimeStagesError):
    """The command line or the config cannot be carried out as written."""

    exit_code = 2


class DataError(SlimeStagesError):
    """A file is there but holds something it must not hold: truncated, altered, of another run."""

    exit_code = 65


class MissingInputError(SlimeStagesError):
    """An input that an earlier stage, or the user, should have put in place is missing."""

    exit_code = 66


class InternalError(SlimeStagesError):
    """Our fault, or the fault of a program we run."""

    exit_code = 70


class RetryableError(SlimeStagesError):
    """Interrupted, drained or short of a resource: what was finished is kept, the same command goes on."""

    exit_code = 75


def _rebuild(cls: type[SlimeStagesError], message: str, hint: str | None) -> SlimeStagesError:
    return cls(message, hint=hint)
