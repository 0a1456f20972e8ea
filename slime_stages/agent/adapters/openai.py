"""OpenAI's protocols: what OpenAI's SDKs, the Agents SDK, Codex and most other agents speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_stages.agent.adapters.base import BaseAdapter
from slime_stages.agent.adapters.chat_completions import ChatCompletions
from slime_stages.agent.adapters.endpoint import Endpoint
from slime_stages.agent.adapters.responses import Responses

ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class OpenAIAdapter(BaseAdapter):
    """`/v1/chat/completions` and `/v1/responses`; a session may use both."""

    call_prefix = "call_"

    def endpoints(self) -> Sequence[Endpoint[Any]]:
        return [ChatCompletions(omit_images=self.omit_images), Responses(omit_images=self.omit_images)]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}
