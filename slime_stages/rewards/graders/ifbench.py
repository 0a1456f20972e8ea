"""Reward type `ifbench`: 1.0 if the response follows every instruction of the prompt, strictly, as IFBench checks it.

Metadata has `instruction_id_list` and `kwargs`, a list with the arguments of each instruction or one dict for all.

Unlike slime, nothing is cloned, installed or downloaded: the checkers come with the package if-verifiable, and what
they need of NLTK's data must be there. Anything missing is an error and no verdict.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from slime_stages.errors import DataError, MissingInputError

NLTK_DATA = {
    "punkt_tab": "tokenizers/punkt_tab/english",
    "stopwords": "corpora/stopwords",
    "averaged_perceptron_tagger_eng": "taggers/averaged_perceptron_tagger_eng",
}
"""What some of the checkers need of NLTK's data, and where NLTK looks for it. No package has it."""
_NLTK_HINT = (
    f"python -m nltk.downloader -d FOLDER {' '.join(NLTK_DATA)}   where there is a network; "
    "then export NLTK_DATA=FOLDER, on storage that the reward stage sees"
)


class NotInstalled(MissingInputError):
    """The package with the checkers is not in this environment."""


def grade_ifbench(response: str, prompt: str, metadata: Mapping[str, Any]) -> float:
    """1.0 if all instructions are followed, else 0.0; DataError for instructions that cannot be checked."""
    names = list(metadata.get("instruction_id_list") or ())
    if not names:
        raise DataError(
            "reward type `ifbench` needs `instruction_id_list` in the prompt's metadata", hint="check --metadata-key"
        )
    prompt = str(metadata.get("prompt_text") or prompt)
    arguments = arguments_of(metadata.get("kwargs"), len(names))
    with _fixed_choices():
        return float(all(_follows(response, prompt, *each) for each in zip(names, arguments, strict=True)))


def check_data() -> None:
    """NotInstalled without the checkers, MissingInputError if they lack data."""
    _checkers()
    import nltk

    missing = []
    for name, place in NLTK_DATA.items():
        try:
            nltk.data.find(place)
        except LookupError:
            missing.append(name)
    if missing:
        raise MissingInputError(
            f"reward type `ifbench` needs data of NLTK that is not here: {', '.join(missing)}", hint=_NLTK_HINT
        )


def arguments_of(given: Any, count: int) -> list[dict[str, Any]]:
    """One dict for each instruction, without what is null: one dict goes to all, a short list repeats its last."""
    if given is None:
        given = {}
    dicts = [given] if isinstance(given, Mapping) else list(given) or [{}]
    dicts = [each or {} for each in dicts]
    if not all(isinstance(each, Mapping) for each in dicts):
        raise DataError(f"`kwargs` of an ifbench prompt must be a dict or a list of dicts, not {given!r}"[:300])
    padded = (dicts + [dicts[-1]] * count)[:count]
    return [{key: value for key, value in each.items() if value is not None} for each in padded]


def _follows(response: str, prompt: str, name: str, arguments: dict[str, Any]) -> bool:
    checkers = _checkers()
    if name not in checkers:
        raise DataError(f"ifbench knows no instruction `{name}`", hint=f"it has {', '.join(sorted(checkers))}"[:400])
    checker = checkers[name](name)
    try:
        checker.build_description(**arguments)
        wanted = checker.get_instruction_args()
        if wanted and "prompt" in wanted:
            checker.build_description(prompt=prompt)
        return bool(response.strip()) and bool(checker.check_following(response))
    except LookupError as error:
        if "nltk" not in str(error).lower():
            raise
        raise MissingInputError(f"the ifbench instruction `{name}` needs data of NLTK", hint=_NLTK_HINT) from error


@functools.cache
def _checkers() -> dict[str, Any]:
    try:
        import nltk
    except ImportError as error:
        raise _not_installed() from error
    download, nltk.download = nltk.download, _no_download  # the package asks the network when it is imported
    try:
        from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT
    except ImportError as error:
        raise _not_installed() from error
    finally:
        nltk.download = download
    return dict(INSTRUCTION_DICT)


def _not_installed() -> NotInstalled:
    return NotInstalled(
        "reward type `ifbench` needs the package if-verifiable", hint="pip install 'slime-stages[ifbench]'"
    )


def _no_download(*_: Any, **__: Any) -> bool:
    return False


@contextmanager
def _fixed_choices() -> Iterator[None]:
    """Arguments that the metadata leaves out are drawn at random: always the same ones, and nobody else's dice move."""
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)
