"""Where things are kept that can be made or fetched again."""

import os
import pathlib


def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "sera_jax"
