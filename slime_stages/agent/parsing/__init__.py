"""What the text of an answer says: reasoning, words for the client, calls of tools.

SGLang's parsers of the installed version do it, by their names (`qwen3`, `qwen25`, `deepseek-r1` …). They are imported
when the first parser is made: that takes seconds and brings torch along, which works without a GPU.
"""

from slime_stages.agent.parsing.answers import (
    END_OF_REASONING,
    AnswerParser,
    ParsedAnswer,
    ToolCall,
    read_arguments,
    write_arguments,
)

__all__ = ["END_OF_REASONING", "AnswerParser", "ParsedAnswer", "ToolCall", "read_arguments", "write_arguments"]
