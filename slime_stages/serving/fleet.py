"""All engines of a job with the routers before them: started together, watched, and ended together.

with Fleet(config, layout, weights, "12@0a1b2c3d", log=run.log_path) as fleet:
    fleet.served().urls
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from slime_stages.config import Config
from slime_stages.drain import uninterrupted
from slime_stages.errors import SlimeStagesError
from slime_stages.serving.encoders import introduce
from slime_stages.serving.engine import Engine, Progress
from slime_stages.serving.flags import usable_overrides
from slime_stages.serving.installation import inspect_installation
from slime_stages.serving.layout import GENERATING, GroupLayout, Layout, ModelLayout
from slime_stages.serving.options import LOCAL_HOST, engine_options, router_options, serving_python
from slime_stages.serving.router import Router, RouterHandle
from slime_stages.serving.served import Served
from slime_stages.stage import say

OWN_WEIGHTS = "fixed"
"""Weight version of a model that is not trained."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One engine of a fleet."""

    model: ModelLayout
    group: GroupLayout
    engine: Engine
    number: int
    """Within its group."""
    name: str
    missed_looks: int = 0
    is_restarting: bool = False
    failed_restarts: int = 0

    @property
    def worker_type(self) -> str:
        return self.group.worker_type

    @property
    def bootstrap_port(self) -> int | None:
        """Where decoding engines meet this one."""
        told = self.group.overrides.get("disaggregation_bootstrap_port")
        return int(str(told)) if told else self.engine.ports.get("disaggregation_bootstrap_port")


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Lives as long as the `with` block, and not longer than this process, however that ends."""

    config: Config
    layout: Layout
    weights: Path
    """What is served of the model that is trained."""
    label: str
    """Its weight version."""
    log: Callable[[str], Path]
    """The path of a log by its name."""
    log_name: str = "engine"
    host: str = LOCAL_HOST
    progress: Progress | None = None
    on_change: Callable[[], None] = lambda: None
    """Called when an engine has got another address."""
    members: list[Member] = field(default_factory=list)
    routers: dict[str, RouterHandle] = field(default_factory=dict)
    """By model; none where one engine is asked directly."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    _watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return once all engines are healthy with their weights, and the routers know them."""
        for warning in self.layout.warnings:
            say(f"warning: {warning}")
        inspect_installation(serving_python(self.config))  # once, before threads ask
        try:
            self._start_routers()
            for worker_types in (("encoder",), ("prefill", *GENERATING)):
                self._start_all([one for model in self.layout.models for one in self._made(model, worker_types)])
            for member in self.members:
                self.register(member)
        except BaseException:
            self.stop()
            raise
        if self.config.serving.use_fault_tolerance:
            from slime_stages.serving.monitor import watch

            self._watcher = threading.Thread(target=watch, args=(self, self._stopping), daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """End every process; returns when none is left."""
        self._stopping.set()
        with uninterrupted():
            for router in self.routers.values():
                if not isinstance(router, Router):
                    self._unregister_all(router)
            ends = [router.shut_down for router in self.routers.values() if isinstance(router, Router)]
            ends += [member.engine.shut_down for member in self.members]
            threads = [threading.Thread(target=end) for end in ends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def served(self) -> Served:
        """What requests can be sent to now."""
        first = self.layout.models[0]
        return Served(
            urls=(self.url_of(first),),
            engine_count=first.engine_count,
            engine_urls=tuple(member.engine.url for member in self.members if member.worker_type in GENERATING),
            model_urls={model.name: self.url_of(model) for model in self.layout.models}
            if self.config.serving.sglang_config
            else {},
            weight_version=self.label if first.model_path is None else None,
        )

    def updated_urls(self) -> tuple[str, ...]:
        """Addresses of the engines that get newer weights."""
        trained = [member for member in self.members if member.model.model_path is None]
        return tuple(member.engine.url for member in trained if member.worker_type != "encoder")

    def url_of(self, model: ModelLayout) -> str:
        """Where requests for a model go."""
        if model.name in self.routers:
            return self.routers[model.name].url
        return next(
            member.engine.url
            for member in self.members
            if member.model.name == model.name and member.worker_type in GENERATING
        )

    def is_lost(self, member: Member) -> bool:
        """Whether an engine is dead and nobody starts it again."""
        if self.config.serving.use_fault_tolerance:
            return member.failed_restarts > 0 and not member.is_restarting
        return not member.engine.is_alive()

    def register(self, member: Member) -> None:
        """Have the model's router send requests to an engine, and its engines send images to its encoders."""
        for other in self.members:
            if other.model is member.model:
                introduce(member.engine, other.engine)
                introduce(other.engine, member.engine)
        router = self.routers.get(member.model.name)
        if router is not None and member.worker_type != "encoder":
            router.add(member.engine.url, worker_type=member.worker_type, bootstrap_port=member.bootstrap_port)

    def _unregister_all(self, router: RouterHandle) -> None:
        for member in self.members:
            with suppress(SlimeStagesError):
                router.remove(member.engine.url)

    def _start_routers(self) -> None:
        serving = self.config.serving
        for place, model in enumerate(self.layout.models):
            if place == 0 and serving.sglang_router_ip and serving.sglang_router_port:
                self.routers[model.name] = RouterHandle(
                    f"http://{serving.sglang_router_ip}:{serving.sglang_router_port}"
                )
            elif model.needs_router:
                router = Router(
                    router_options(self.config, model, host=self.host),
                    log=self.log(f"{self.log_name}-router-{model.name}"),
                )
                self.routers[model.name] = router
                router.start()

    def _made(self, model: ModelLayout, worker_types: Sequence[str]) -> Iterator[Member]:
        """Engines of these types, not started yet."""
        encoders = [m.engine.url for m in self.members if m.model.name == model.name and m.worker_type == "encoder"]
        for group in model.groups:
            if group.worker_type not in worker_types:
                continue
            overrides, warnings = usable_overrides(group.overrides, serving_python(self.config))
            for warning in warnings:
                say(f"warning: {warning}")
            for number in range(len(group.first_gpus)):
                options = engine_options(
                    self.config,
                    self.layout,
                    model,
                    group,
                    number,
                    host=self.host,
                    overrides=overrides,
                    encoder_urls=encoders,
                )
                name = f"{self.log_name}{self._suffix(model, group, number)}"
                engine = Engine(
                    self.weights if model.model_path is None else Path(model.model_path),
                    self.label if model.model_path is None else OWN_WEIGHTS,
                    log=self.log(name),
                    options=options,
                    progress=self.progress if not self.members else None,
                )
                member = Member(model=model, group=group, engine=engine, number=number, name=name)
                self.members.append(member)
                yield member

    def _suffix(self, model: ModelLayout, group: GroupLayout, number: int) -> str:
        """What tells an engine's log from the others'; nothing for the only engine."""
        groups = [one for each in self.layout.models for one in each.groups]
        if len(groups) == 1 and len(group.first_gpus) == 1:
            return ""
        kind = "" if group.worker_type == "regular" else f"-{group.worker_type}"
        return f"-{model.name}{kind}-gpu{group.first_gpus[number]}"

    def _start_all(self, members: list[Member]) -> None:
        """Start engines side by side; the error of the first that fails."""
        if not members:
            return
        if len(members) == 1:
            members[0].engine.start()
            return
        pool = ThreadPoolExecutor(len(members))
        try:
            futures = [pool.submit(member.engine.start) for member in members]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            for member in self.members:
                member.engine.shut_down()
            raise
        finally:
            pool.shutdown(wait=True)
