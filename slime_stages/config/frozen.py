"""The files of a run's frozen configs: sealed, so that an altered one is not taken for what was asked for."""

from __future__ import annotations

from pathlib import Path

import orjson

from slime_stages.config.model import Config
from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.digest import sealed, unsealed


def frozen_bytes(config: Config) -> bytes:
    """What `read_frozen` reads."""
    values = orjson.loads(config.to_json_bytes())
    return orjson.dumps(sealed(values), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_frozen(path: Path) -> Config:
    """MissingInputError if the file is gone, DataError if it is not whole or does not fit this version."""
    try:
        values = unsealed(orjson.loads(path.read_bytes()), path)
    except FileNotFoundError as error:
        raise MissingInputError(f"the run's config {path} is gone", hint=f"ls {path.parent}") from error
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{path} is not whole: {error}", hint=f"ls {path.parent}") from error
    return Config.from_json(orjson.dumps(values))
