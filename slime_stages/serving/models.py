"""Where a generate function finds a model of `sglang_config`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from slime_stages.serving.served import Served


def set_addresses(args: Any, served: Served) -> None:
    """Put the addresses into `args`, where slime's plug-ins look for them."""
    args.sglang_router_ip, args.sglang_router_port = host_and_port(served.urls[0])
    args.sglang_model_routers = {name: host_and_port(url) for name, url in served.model_urls.items()}
    args.rollout_num_engines = served.engine_count


def get_model_url(args: Any, model_name: str, endpoint: str = "/generate") -> str:
    """The address of an endpoint of a model; of the default model for a name that is not known."""
    routers = args.sglang_model_routers or {}
    host, port = routers.get(model_name, (args.sglang_router_ip, args.sglang_router_port))
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{endpoint}"


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
