"""Which session a request of OpenAI's protocols belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_stages.agent.adapters.endpoint import bearer_token
from slime_stages.agent.adapters.sessions import DEFAULT


def session_id(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """The API key; else what the body's metadata call the session; else the body's user."""
    metadata = body.get("metadata")
    named = (metadata.get("session_id") if isinstance(metadata, dict) else None, body.get("user"))
    in_body = next((name for name in named if isinstance(name, str) and name), DEFAULT)
    return bearer_token(headers) or in_body
