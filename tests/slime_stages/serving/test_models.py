from __future__ import annotations

from slime_stages.config.args import Args
from slime_stages.serving.models import get_model_url, set_addresses
from slime_stages.serving.served import Served


def test_a_model_is_found_by_its_name_and_an_unknown_one_is_the_default() -> None:
    args = Args()
    urls = {"actor": "http://127.0.0.1:3001", "judge": "http://[::1]:3002"}
    set_addresses(args, Served(urls=("http://127.0.0.1:3001",), engine_count=2, model_urls=urls))

    assert args.sglang_model_routers == {"actor": ("127.0.0.1", 3001), "judge": ("::1", 3002)}
    assert get_model_url(args, "judge") == "http://[::1]:3002/generate"
    assert get_model_url(args, "judge", "/v1/chat/completions") == "http://[::1]:3002/v1/chat/completions"
    assert get_model_url(args, "nobody") == "http://127.0.0.1:3001/generate"


def test_one_model_needs_no_name() -> None:
    args = Args()
    set_addresses(args, Served(urls=("http://127.0.0.1:3001",), engine_count=1))

    assert args.sglang_model_routers == {}
    assert get_model_url(args, "actor") == "http://127.0.0.1:3001/generate"
