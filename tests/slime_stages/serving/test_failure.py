from __future__ import annotations

from pathlib import Path

from slime_stages.errors import InternalError, UsageError
from slime_stages.serving.failure import CAUSED, explain_failure, is_port_clash, read_log

LOG = Path("sglang.log")


def test_a_refused_option_is_a_usage_error() -> None:
    lines = ["usage: launch_server.py [-h]", "launch_server.py: error: unrecognized arguments: --fast"]

    error = explain_failure(lines, 2, LOG)

    assert isinstance(error, UsageError)
    assert error.message == "sglang refuses its options: unrecognized arguments: --fast"


def test_lack_of_memory_is_said_with_what_to_lower() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

    error = explain_failure(["loading", line, "RuntimeError: worker died"], 1, LOG)

    assert error.message == f"the engine ran out of memory: {line}"
    assert error.hint is not None
    assert "--sglang-mem-fraction-static" in error.hint


def test_the_last_exception_is_the_message() -> None:
    lines = ["Traceback (most recent call last):", "[2026-01-01 00:00:00] ValueError: bad rope", "  at exit"]

    error = explain_failure(lines, 1, LOG)

    assert isinstance(error, InternalError)
    assert error.message == "the engine ended with exit code 1: [2026-01-01 00:00:00] ValueError: bad rope"


def test_an_exception_is_told_with_its_cause_and_a_missing_library_with_what_to_do() -> None:
    cause = "ImportError: libibverbs.so.1: cannot open shared object file: No such file or directory"
    trace = ["Traceback (most recent call last):", cause, CAUSED, "Traceback (most recent call last):"]

    error = explain_failure(["ValueError: another one, caught", *trace, "ImportError: Please install it"], 137, LOG)

    assert isinstance(error, UsageError)
    assert error.message == f"the engine does not start: ImportError: Please install it / {cause}"
    assert error.hint == "install the system's package that has libibverbs.so.1, where the engine runs; less sglang.log"


def test_a_model_without_encoders_is_told_by_its_name_and_with_what_to_leave_out() -> None:
    line = (
        "ValueError: Model type Gemma3ForConditionalGeneration is not supported for encoder disaggregation. Supported"
    )

    error = explain_failure([line], 1, LOG)

    assert isinstance(error, UsageError)
    assert error.message == "sglang has no encoder engines for Gemma3ForConditionalGeneration"
    assert error.hint is not None
    assert "take the encoder groups out" in error.hint


def test_a_kill_without_a_word_points_to_memory() -> None:
    assert "killed while it started" in explain_failure(["loading weights"], 137, LOG).message


def test_a_taken_port_is_told_from_other_failures() -> None:
    assert is_port_clash(["[Errno 98] error while attempting to bind: address already in use"])
    assert not is_port_clash(["ValueError: bad rope"])


def test_a_log_is_read_from_where_this_attempt_began(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\nnew\n\nlast\n")

    assert read_log(log, 4) == ["new", "last"]
    assert read_log(tmp_path / "none") == []
