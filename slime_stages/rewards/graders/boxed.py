r"""Find the answer a response puts in its last `\boxed{…}`."""

from __future__ import annotations

_BOXED = "\\boxed"


def last_boxed(text: str) -> str | None:
    r"""What stands between the braces of the last `\boxed`, or None if it has no (balanced) braces.

    An earlier box is never used instead: `\boxed{1} \boxed 2` holds no answer.
    """
    start = text.rfind(_BOXED)
    if start < 0 or not text.startswith("{", start + len(_BOXED)):
        return None
    first = start + len(_BOXED) + 1
    depth = 1
    for position in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[first:position]
    return None


def unboxed(answer: str) -> str | None:
    r"""`answer` itself, or the content of its last box if it mentions `\boxed`."""
    return last_boxed(answer) if _BOXED in answer else answer
