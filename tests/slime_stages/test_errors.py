"""Errors: their exit codes, and that they pass between processes whole."""

from __future__ import annotations

import pickle

import pytest

from slime_stages.errors import (
    DataError,
    InternalError,
    MissingInputError,
    RetryableError,
    SlimeStagesError,
    UsageError,
)

CODES = {UsageError: 2, DataError: 65, MissingInputError: 66, InternalError: 70, RetryableError: 75}


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_every_error_has_its_exit_code_and_goes_through_a_pickle(kind: type[SlimeStagesError], code: int) -> None:
    error = pickle.loads(pickle.dumps(kind("3 of 4 shards are there", hint="slime-stages rollout --shard 3")))

    assert (type(error), error.exit_code) == (kind, code)
    assert (str(error), error.hint) == ("3 of 4 shards are there", "slime-stages rollout --shard 3")


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_the_exit_code_of_another_process_gives_its_error_again(kind: type[SlimeStagesError], code: int) -> None:
    error = SlimeStagesError.with_exit_code(code, "no", hint="yes")

    assert (type(error), error.message, error.hint) == (kind, "no", "yes")


def test_an_exit_code_that_is_nobodys_is_our_fault() -> None:
    assert type(SlimeStagesError.with_exit_code(1, "crashed")) is InternalError
