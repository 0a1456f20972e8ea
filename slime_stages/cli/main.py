"""The command line. A command's module is imported when the command is called, so that `--help` is instant."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from slime_stages import __version__
from slime_stages.cli.options import CLICK_USAGE_ERROR
from slime_stages.drain import Drained, drain_reason
from slime_stages.errors import RetryableError, SlimeStagesError

COMMANDS = {
    "init": ("slime_stages.cli.init:command", "Start a run: check its config and freeze it in a folder."),
    "iter": ("slime_stages.cli.iter:command", "Run iterations: rollout, reward, train and sync, in turn."),
    "rollout": ("slime_stages.cli.stages:rollout", "Generate samples for an iteration's prompts."),
    "reward": ("slime_stages.cli.stages:reward", "Score the samples of a rollout."),
    "train": ("slime_stages.cli.stages:train", "Take the optimizer steps of an iteration."),
    "sync": ("slime_stages.cli.stages:sync", "Publish the trained weights for the next rollout."),
    "eval": ("slime_stages.cli.eval:command", "Measure a version of the weights on the evaluation prompts."),
    "serve": ("slime_stages.cli.serve:command", "Keep engines for a run's rollouts, here or in a job."),
    "plan": ("slime_stages.cli.plan:command", "Show what iter would submit to SLURM: jobs, hours, bytes."),
    "advance": ("slime_stages.cli.chain:command", "Submit what a run's chain of jobs needs next; its jobs do so."),
    "status": ("slime_stages.cli.status:command", "Show what is done, stale or missing, and what to do next."),
    "logs": ("slime_stages.cli.logs:command", "Print what a job, or an engine, has written."),
    "rerun": ("slime_stages.cli.rerun:command", "Set an output aside and make it again."),
    "cancel": ("slime_stages.cli.cancel:command", "Stop a run's chain and cancel its jobs."),
    "convert": ("slime_stages.cli.convert:command", "Turn Hugging Face weights into Megatron's format, or back."),
    "doctor": ("slime_stages.cli.doctor:command", "Check that this cluster is ready."),
    "show": ("slime_stages.cli.show:command", "Print samples for reading, with rewards and advantages."),
    "trace": ("slime_stages.cli.trace:command", "Write when samples were generated and scored, as a Chrome trace."),
    "explain": ("slime_stages.cli.explain:command", "Follow a sample from its prompt to the step that trained on it."),
    "query": ("slime_stages.cli.query:command", "Ask SQL of every sample that a run ever made."),
    "config": ("slime_stages.cli.config:command", "Print the settings as used, and where each came from."),
}
"""Each command's function, as `module:name`, and its line in `--help`."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_OUR_FAULT = 70


class LazyGroup(TyperGroup):
    """Knows the commands' names and lines of help; imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else command, rest

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        with ends_told_apart():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        with ends_told_apart():
            return super().invoke(ctx)


@contextmanager
def ends_told_apart() -> Iterator[None]:
    """Typer takes any broken pipe for a closed stdout, also where an engine hung up, and ends at a drain without a word
    as at any KeyboardInterrupt."""
    try:
        yield
    except Drained as drained:
        raise RetryableError(drained.message) from drained
    except BrokenPipeError as error:
        if _reader_is_gone():
            raise typer.Exit(EXIT_BROKEN_PIPE) from error
        raise ConnectionError(f"a connection broke: {error}") from error


def load_command(name: str) -> Any:
    """Build one command from its function, with the class of command that the function asks for."""
    module_name, function_name = COMMANDS[name][0].split(":")
    function = getattr(import_module(module_name), function_name)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    command_class = getattr(function, "command_class", None)
    single.command(name=name, cls=command_class, context_settings=CONTEXT)(function)
    return get_command(single)


app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, context_settings=CONTEXT)


@app.callback(epilog="slime-stages COMMAND --help says more about a command.")
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Agentic RL post-training as batch jobs over files: rollout, reward, train, sync."""


def _placeholder() -> None:
    raise AssertionError("LazyGroup puts the real command in place of this one")


for _name, (_, _help) in COMMANDS.items():
    app.command(name=_name, help=_help)(_placeholder)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--version"]:
        print(f"slime-stages {__version__}")
        return 0
    try:
        result = get_command(app).main(words or ["--help"], prog_name="slime-stages", standalone_mode=False)
        return EXIT_BROKEN_PIPE if _flush_fails() else result if isinstance(result, int) else 0
    except SlimeStagesError as error:
        return _fail(error.message, error.hint, error.exit_code)
    except CLICK_USAGE_ERROR as error:
        return _fail_usage(error)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail_ours() if isinstance(error.__cause__, EOFError) else EXIT_INTERRUPTED
    except Exception as error:
        if (reason := drain_reason()) is None:
            return _fail_ours()
        # A signal may come anywhere, amid a library's import too, which then fails in its own words.
        return _fail(f"drained ({reason}): {type(error).__name__}: {error}", None, RetryableError.exit_code)


def _fail(message: str, hint: str | None, exit_code: int) -> int:
    print(f"error: {message}" + (f"\n\nhint: {hint}" if hint else ""), file=sys.stderr)
    return exit_code


def _fail_usage(error: Any) -> int:
    """Words of click's, in our form: lower case, a way out below."""
    message, _, suggestion = error.format_message().partition(" Did you mean ")
    message, _, possible = message.partition(" (Possible options: ")
    likely = possible.rstrip(")") or suggestion.rstrip("?").replace("'", "")
    command = error.ctx.command_path if error.ctx else "slime-stages"
    hint = f"did you mean {likely}?" if likely else f"{command} --help"
    return _fail(message[:1].lower() + message[1:].rstrip("."), hint, error.exit_code)


def _fail_ours() -> int:
    traceback.print_exc()
    hint = f"report the lines above and the command, with slime-stages {__version__}, Python {sys.version.split()[0]}"
    return _fail("this is a fault in slime-stages or in a plug-in", hint, EXIT_OUR_FAULT)


def _flush_fails() -> bool:
    """Whether whoever reads our output went before it was all written; then nothing more is, at exit neither."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return True
    return False


def _reader_is_gone() -> bool:
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # a stdout that is no file, such as a notebook's
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        return False
    _drop_stdout()
    return True


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
