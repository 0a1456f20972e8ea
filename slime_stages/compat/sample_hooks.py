"""The hooks of `--rollout-sample-hook-path`, over whatever a generate function returned."""

from __future__ import annotations

import inspect
from typing import Any

from slime_stages.plugins import accepts, load_function
from slime_stages.sample import Sample


async def apply_rollout_sample_hooks(args: Any, value: Any, **kwargs: Any) -> Any:
    """Every sample in lists of lists as the hooks leave it; they get the `kwargs` that they have parameters for."""
    if isinstance(value, list):
        return [await apply_rollout_sample_hooks(args, item, **kwargs) for item in value]
    for path in args.rollout_sample_hook_path or ():
        hook = load_function(path)
        made = hook(args, value, **{name: given for name, given in kwargs.items() if accepts(hook, name)})
        made = await made if inspect.isawaitable(made) else made
        if not isinstance(made, Sample | None):
            raise TypeError(f"the sample hook `{path}` returned {type(made).__name__}, not a Sample or None")
        value = value if made is None else made
    return value
