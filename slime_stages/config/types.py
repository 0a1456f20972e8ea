"""Types that config fields are made of."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Le
from pydantic import AfterValidator, BaseModel, ConfigDict

from slime_stages.prompts.names import HUB, is_hub_name


def absolute_path(text: str) -> str:
    """`~` and `$NAME` replaced, then absolute from the current directory; a slice `@[0:100]` stays at the end."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(text)))


PATH = AfterValidator(absolute_path)


def prompt_source(text: str) -> str:
    """`hf:NAME` for what names a data set and nothing in the current directory; an absolute path for anything else."""
    if text.startswith(HUB):
        return text
    return HUB + text if is_hub_name(text) else absolute_path(text)


def command_words(text: str) -> str:
    """A command as it is typed, with absolute paths: of the program, unless it is found by its name, and of the files
    among its words. ValueError if it names none, or has a quote that is not closed."""
    whole = absolute_path(text)
    if os.path.isfile(whole):
        return shlex.quote(whole)
    program, *words = shlex.split(os.path.expandvars(text)) or [""]
    if not program:
        raise ValueError("names no program")
    program = absolute_path(program) if "/" in program else program
    return shlex.join([program, *(path if os.path.exists(path := absolute_path(word)) else word for word in words)])


LocalPath = Annotated[str, PATH]
"""A file or folder; kept absolute, since jobs start elsewhere than the person who typed it."""

Command = Annotated[str, AfterValidator(command_words)]
"""The words that start a program, such as `apptainer exec image.sif python3`; its paths are kept absolute."""

PromptSource = Annotated[str, AfterValidator(prompt_source)]
"""Prompt data: a file, a folder or a data set's name, perhaps with a split and a slice."""

Share = Annotated[float, Gt(0), Le(1)]
"""A share or probability above 0."""

Scalar = bool | int | float | str
Options = dict[str, Scalar | tuple[Scalar, ...]]
"""Options of a program we start: `{"mem_fraction_static": 0.8, "cuda_graph_bs": (1, 2, 4)}`."""


class Section(BaseModel):
    """One table of the config file. The text under a field is its help, its reference and part of its errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    title: ClassVar[str]
    """What the section is about, for the reference page and `--help`."""

    in_plan: ClassVar[frozenset[str]] = frozenset()
    """Settings that reach the stages by the plan alone, which has a digest of its own."""

    undigested: ClassVar[frozenset[str]] = frozenset()
    """Settings that no output depends on."""

    digested_if_set: ClassVar[frozenset[str]] = frozenset()
    """Settings that came later: left at their default, what was made before them is still fresh."""

    def as_json(self) -> dict[str, Any]:
        """What the section's digest is of."""
        fields = type(self).model_fields
        unset = {name for name in self.digested_if_set if getattr(self, name) == fields[name].default}
        return self.model_dump(mode="json", exclude=set(self.in_plan | self.undigested) | unset)
