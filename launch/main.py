"""Trains: python launch/main.py --config=configs/textworld.py[:PRESET] [--config.FIELD=VALUE]"""

import datetime
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # of a missing torch

import jax
from absl import app, flags, logging
from ml_collections import config_flags

# On a CPU the batch is split over one device a core, which beats one device on all cores. Said
# before the config is read, for reading it may ask JAX for its devices.
jax.config.update("jax_num_cpu_devices", 2 if (os.cpu_count() or 1) >= 2 else 1)

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "FILE.py or FILE.py:PRESET", lock_config=True
)
flags.mark_flag_as_required("config")


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)  # orbax reports every file it writes
    from sera_jax import launching

    config = CONFIG.value
    name = pathlib.Path(config_flags.get_config_filename(flags.FLAGS["config"])).stem
    started = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = config.run.folder or f"runs/{name}-{config.preset}-{started}"
    try:
        launching.run(config, pathlib.Path(folder))
    except launching.USER_ERRORS as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    app.run(main)
