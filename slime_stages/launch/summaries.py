"""What is known of past iterations, kept in the run, so that a thousand of them need not be read again.

    metrics/summaries/000012.json       the iteration's overview, and what it was true of

It is true while no file of the iteration has changed, by its size and its time of change, while the manifests outside
of the iteration that it depends on have the same content, and while the config says the same. A summary that is lost,
altered or not true any more is made again from the manifests.

Who asks for an overview says which iterations to look at closely; of others, where these are complete, the data files
are not looked at one by one: see `looks.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from slime_stages.launch.looks import Look, Part, for_each
from slime_stages.launch.overview import IterationOverview
from slime_stages.launch.summary_file import Summary, config_as_read, load_summary, save_summary
from slime_stages.run.rundir import RunDir

SETTLED_SECONDS = 10.0
"""Younger files might change once more without a change of their times, which some file systems keep in seconds."""


class Summaries:
    """The overviews of a run's iterations and evaluations, from summaries where these are true."""

    def __init__(self, run: RunDir, *, trust_seconds: float = 0.0) -> None:
        """`trust_seconds`: how long a complete iteration that was looked at is not looked at again."""
        self._run = run
        self._run_id = run.run_id()
        self._trust_seconds = trust_seconds
        self._trusted: dict[Part, tuple[float, Summary]] = {}
        self._contents: dict[str, str | None] = {}
        self._configs: dict[int, str | None] = {}

    def overviews(self, parts: Sequence[Part], *, closely: Collection[Part] | None = None) -> list[IterationOverview]:
        """In the order asked for, which is best that of the iterations: each is compared with the ones before it.

        `closely`: those to look at closely even if they were complete; None: all.
        """
        self._contents.clear()
        self._configs.clear()
        now = time.time()
        trusted = {part: each for part, (at, each) in self._trusted.items() if now - at < self._trust_seconds}
        stored = {
            part: each
            for part in parts
            if part not in trusted and (each := load_summary(self._run, self._run_id, part)) is not None
        }
        looked_into = frozenset(parts if closely is None else closely)
        is_unchanged = for_each(stored, lambda part: self._is_unchanged(part, stored[part], part in looked_into))
        unchanged = trusted | {part: each for part, each in stored.items() if is_unchanged[part]}
        made = for_each([part for part in parts if part not in unchanged], self._made)
        overviews = []
        for part in parts:
            summary = unchanged.get(part)
            if summary is not None and self._holds(summary):
                self._contents.update(summary.contents)
                overview = summary.overview
            else:
                summary, overview = made[part] if part in made else self._made(part)
            if summary is not None and overview.is_complete and part not in trusted:
                self._trusted[part] = (now, summary)
            overviews.append(overview)
        return overviews

    def _is_unchanged(self, part: Part, summary: Summary, is_close: bool) -> bool:
        """Whether the iteration's files are as they were; a data file that was mended in its place is to be seen."""
        if Look(self._run, part, summary.shards, at_data=False).digest != summary.looks:
            return False
        if summary.overview.is_complete and not is_close:
            return True
        return Look(self._run, part, summary.shards, at_data=True).digest == summary.data_looks

    def _holds(self, summary: Summary) -> bool:
        """Whether what it depends on outside of the iteration's folder is as it was."""
        return summary.config == self._config(summary.config_revision) and all(
            self._content(name) == content for name, content in summary.outside.items()
        )

    def _config(self, revision: int) -> str | None:
        if revision not in self._configs:
            self._configs[revision] = config_as_read(self._run, revision)
        return self._configs[revision]

    def _content(self, name: str) -> str | None:
        if name not in self._contents:
            from slime_stages.launch.summarise import content_of

            self._contents[name] = content_of(self._run, name)
        return self._contents[name]

    def _made(self, part: Part) -> tuple[Summary | None, IterationOverview]:
        """From the manifests; with its summary, which is kept."""
        from slime_stages.launch.summarise import summarise

        summary, overview, last_change = summarise(self._run, part)
        if summary is not None:
            self._contents.update(summary.contents)
            if last_change < (time.time() - SETTLED_SECONDS) * 1e9:
                save_summary(self._run, self._run_id, part, summary)
        return summary, overview
