"""The reference page of all settings: `python -m slime_stages.config.reference > docs/config.md`."""

from __future__ import annotations

from collections.abc import Iterator

from slime_stages.config.describe import toml_value
from slime_stages.config.fields import ConfigField, fields, sections

HEAD = """\
# Settings

A setting is a key of the config file, a flag, and an attribute of `args` in plug-ins, under one name:
`lr = 2e-6` below `[optimizer]`, `--lr 2e-6`, `args.lr`. Flags win over the file, the file over defaults.
Relative paths are relative to the current directory, in the file too. `slime-stages config --explain` shows
what comes out, and which value came from where.

A list takes several words: `--rollout-stop "</answer>" "</s>"`. A table is a JSON object:
`--apply-chat-template-kwargs '{"enable_thinking": false}'`. `--sglang-NAME VALUE` and `--router-NAME VALUE` go to
SGLang and its router; without a value they are true.
"""


def reference() -> str:
    return "\n".join([HEAD, *(line for section in sections() for line in _section(section))])


def _section(name: str) -> Iterator[str]:
    title = sections()[name].title
    yield from (f"## [{name}]", "", title[0].upper() + title[1:] + ".", "")
    yield from ("| setting | type | default | |", "|---|---|---|---|")
    for setting in fields().values():
        if setting.section == name:
            yield _row(setting)
    yield ""


def _row(setting: ConfigField) -> str:
    default = "required" if setting.required else "" if setting.default is None else f"`{toml_value(setting.default)}`"
    cells = [f"`{setting.name}`", setting.type_label, default, setting.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(reference(), end="")
