"""Piped into the interpreter that runs SGLang: prints, as one line of JSON, versions and options, read from source."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = ("sglang", "smg", "torch", "torchvision", "sgl-kernel", "sglang-kernel", "sgl-kernel-cpu")
SWITCHES = {"store_true", "store_false", "DeprecatedStoreTrueAction"}
BOOLEANS = {"bool", "Optional[bool]", "bool | None"}


def package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def trees(paths: list[Path]) -> Iterator[ast.Module]:
    for path in paths:
        if path.is_file():
            yield ast.parse(path.read_text(encoding="utf-8"))


def options(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(field name, option, kind) of each annotated field and of each `add_argument` call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    yield from field_options(statement)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            keywords = {word.arg: word.value for word in node.keywords}
            for name in option_names(node.args):
                yield name.strip("-").replace("-", "_"), name, kind_of_action(keywords.get("action"))


def field_options(statement: ast.AnnAssign) -> Iterator[tuple[str, str, str]]:
    annotation = statement.annotation
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
        return
    assert isinstance(annotation.slice, ast.Tuple)
    assert isinstance(statement.target, ast.Name)
    field = statement.target.id
    kind = "switch" if ast.unparse(annotation.slice.elts[0]) in BOOLEANS else "value"
    names = ["--" + field.replace("_", "-")]
    for part in annotation.slice.elts[1:]:
        keywords = {word.arg: word.value for word in part.keywords} if isinstance(part, ast.Call) else {}
        if "no_cli" in keywords:
            return
        if isinstance(cli_name := keywords.get("cli_name"), ast.Constant):
            names[0] = str(cli_name.value)
        if isinstance(aliases := keywords.get("aliases"), ast.List):
            names += option_names(aliases.elts)
        if "action" in keywords:
            kind = kind_of_action(keywords["action"])
    yield field, names[0], kind
    for name in names:
        yield name.strip("-").replace("-", "_"), name, kind


def option_names(nodes: list[ast.expr]) -> list[str]:
    """Literal option strings; of `f"--{prefix}policy"` the text after the prefix."""
    names = []
    for node in nodes:
        if isinstance(node, ast.Constant) and str(node.value).startswith("--"):
            names.append(str(node.value))
        elif isinstance(node, ast.JoinedStr) and isinstance(last := node.values[-1], ast.Constant):
            names.append("--" + str(last.value))
    return names


def kind_of_action(action: ast.expr | None) -> str:
    name = ast.unparse(action).strip("'\"").rpartition(".")[2] if action is not None else ""
    if name == "BooleanOptionalAction":
        return "either"
    return "switch" if name in SWITCHES else "value"


def collect(paths: list[Path]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for tree in trees(paths):
        for name, option, kind in options(tree):
            found.setdefault(name, (option, kind))
    return found


def installed_versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    sglang, smg = package_folder("sglang"), package_folder("smg")
    sources = [sglang / "srt" / "server_args.py"] if sglang else []
    if sglang:
        sources += sorted((sglang / "srt" / "arg_groups" / "fields").glob("*.py"))
    router = [smg / "router_args.py"] if smg else []
    print(json.dumps({"versions": installed_versions(), "sglang": collect(sources), "smg": collect(router)}))


if __name__ == "__main__":
    main()
