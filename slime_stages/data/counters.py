"""What the engine counted over the calls of one sample: speculative decoding and its prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SpecInfo:
    """Speculative decoding counters, summed over the engine calls of one sample."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    def add(self, meta_info: dict[str, Any]) -> None:
        """Newer SGLangs have other names for what was proposed and accepted."""
        accepted = meta_info.get("spec_accept_token_num", meta_info.get("spec_num_correct_drafts", 0))
        proposed = meta_info.get("spec_draft_token_num", meta_info.get("spec_num_proposed_drafts", 0))
        self.spec_accept_token_num += accepted
        self.spec_draft_token_num += proposed
        self.spec_verify_ct += meta_info.get("spec_verify_ct", 0)
        self.completion_token_num += meta_info.get("completion_tokens", 0)

    @property
    def spec_accept_rate(self) -> float:
        return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num else 0.0

    @property
    def spec_accept_length(self) -> float:
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct else 0.0


@dataclass(slots=True)
class PrefixCacheInfo:
    """Prefix cache counters, summed over the engine calls of one sample."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    def add(self, meta_info: dict[str, Any]) -> None:
        self.cached_tokens += meta_info.get("cached_tokens", 0)
        self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)

    @property
    def prefix_cache_hit_rate(self) -> float:
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens else 0.0
