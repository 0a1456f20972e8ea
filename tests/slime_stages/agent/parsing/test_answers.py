"""SGLang's own parsers on texts as models write them, and what is done where they find nothing."""

from __future__ import annotations

from typing import Any

import pytest

from slime_stages.agent.parsing import AnswerParser, ParsedAnswer, ToolCall
from slime_stages.errors import UsageError


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


TOOLS = [tool("search", query="string", count="integer"), tool("stop")]


@pytest.fixture(scope="module")
def qwen() -> AnswerParser:
    return AnswerParser("qwen25", "qwen3")


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_reasoning_text_and_a_call_are_told_apart(qwen: AnswerParser) -> None:
    answer = qwen.parse("<think>\nhm\n</think>\n\nI look. " + written("search", '{"query": "x"}'), TOOLS)

    assert answer == ParsedAnswer("I look.", "hm", (ToolCall("search", {"query": "x"}),), ill_formed=False)


def test_all_calls_of_an_answer_are_kept_in_their_order(qwen: AnswerParser) -> None:
    text = written("search", '{"query": "a"}') + "\n" + written("stop", "{}") + "\n" + written("search", "{}")

    assert [call.name for call in qwen.parse(text, TOOLS).tool_calls] == ["search", "stop", "search"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('"text"', {"_raw_arguments": '"text"'}), ("[1]", {"_raw_arguments": "[1]"}), ("{}", {})],
)
def test_arguments_that_are_no_object_are_kept_as_written(
    qwen: AnswerParser, arguments: str, expected: dict[str, Any]
) -> None:
    answer = qwen.parse(written("stop", arguments), TOOLS)

    assert answer.tool_calls == (ToolCall("stop", expected),)
    assert answer.ill_formed is (expected != {})


@pytest.mark.parametrize(
    "text",
    [written("search", '{"query": '), '<tool_call>\n{"name": "sea', written("unknown", "{}"), written("stop", "")],
)
def test_a_call_that_cannot_be_read_is_told_of(qwen: AnswerParser, text: str) -> None:
    answer = qwen.parse(text, TOOLS)

    assert (answer.tool_calls, answer.ill_formed) == ((), True)
    assert answer.text == text


def test_one_broken_call_among_good_ones_is_told_of(qwen: AnswerParser) -> None:
    answer = qwen.parse(written("stop", "{}") + written("search", "{") + written("stop", "{}"), TOOLS)

    assert ([call.name for call in answer.tool_calls], answer.ill_formed) == (["stop", "stop"], True)


def test_without_tools_calls_are_text(qwen: AnswerParser) -> None:
    assert qwen.parse(written("stop", "{}")).text == written("stop", "{}")


def test_reasoning_whose_beginning_is_in_the_prompt_ends_at_its_mark(qwen: AnswerParser) -> None:
    answer = qwen.parse("hm\n</think>\n\nSeven.")

    assert (answer.reasoning, answer.text) == ("hm", "Seven.")


def test_without_parsers_a_text_is_a_text() -> None:
    assert AnswerParser().parse(" <think>a</think>b\n") == ParsedAnswer("<think>a</think>b", "", (), ill_formed=False)


def test_calls_in_xml_are_found_whatever_the_parser(qwen: AnswerParser) -> None:
    text = (
        "First.<tool_call>\n<function=search>\n<parameter=query>\n5\n</parameter>\n<parameter=count>\n5\n</parameter>\n"
        "</function>\n</tool_call><tool_call><function=other></function></tool_call>"
    )

    for parser in (qwen, AnswerParser()):
        answer = parser.parse(text, TOOLS)
        assert answer.text == "First.<tool_call><function=other></function></tool_call>"
        assert answer.tool_calls == (ToolCall("search", {"query": "5", "count": 5}),)
        assert answer.ill_formed is False


def test_a_parser_that_fails_costs_no_more_than_the_call(
    qwen: AnswerParser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise IndexError("unexpected")

    monkeypatch.setattr("slime_stages.agent.parsing.sglang_parsers.take_calls", fail)

    answer = qwen.parse("text", TOOLS)

    assert (answer.text, answer.ill_formed) == ("text", True)
    assert "tool parser qwen25 fails" in caplog.text


@pytest.mark.parametrize("name", ["deepseekv3", "glm45", "kimi_k2", "llama3", "mistral", "pythonic", "qwen3_coder"])
def test_a_plain_text_is_text_for_every_tool_parser(name: str) -> None:
    answer = AnswerParser(name).parse("Seven.", TOOLS)

    assert answer == ParsedAnswer("Seven.", "", (), ill_formed=False)


@pytest.mark.parametrize("names", [("no_such", None), (None, "no_such")])
def test_a_parser_that_does_not_exist_is_refused_with_those_that_do(names: tuple[str | None, str | None]) -> None:
    with pytest.raises(UsageError, match="no parser no_such") as caught:
        AnswerParser(*names)

    assert "qwen" in (caught.value.hint or "")
