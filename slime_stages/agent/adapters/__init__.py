"""HTTP adapters: an unmodified agent talks to one as to its vendor, and what the model sampled meanwhile is kept.

Message history in, sampled tokens out: a request is rendered with the model's own chat template, answered by the engine
from token ids, and recorded by token ids once the client has the answer.
"""

from slime_stages.agent.adapters.anthropic import AnthropicAdapter
from slime_stages.agent.adapters.base import BaseAdapter
from slime_stages.agent.adapters.openai import OpenAIAdapter
from slime_stages.agent.adapters.serve import FilteredAccessLogger, run_app_in_thread

__all__ = ["AnthropicAdapter", "BaseAdapter", "FilteredAccessLogger", "OpenAIAdapter", "run_app_in_thread"]
