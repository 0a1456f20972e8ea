"""The experiment's settings: typed sections, filled from defaults, then a TOML file, then flags.

    resolved = resolve(Path("config.toml"), ["--lr", "2e-6", "--sglang-mem-fraction-static", "0.8"])
    resolved.config.optimizer.lr        # 2e-06
    resolved.sources["lr"]              # "--lr"
    resolved.config.as_args().lr        # as plug-ins see it

A setting's name is slime's flag name with underscores, unique over all sections.
"""

from slime_stages.config.load import ResolvedConfig, resolve
from slime_stages.config.model import Config, Difference, diff

__all__ = ["Config", "Difference", "ResolvedConfig", "diff", "resolve"]
