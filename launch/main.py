"""Trains: python launch/main.py --config=configs/textworld.py[:PRESET] [--config.FIELD=VALUE]"""

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

CONFIG = config_flags.DEFINE_config_file("config", None, "FILE.py or FILE.py:PRESET")
flags.mark_flag_as_required("config")


def main(_) -> None:
    from sera_jax import launching

    logging.set_verbosity(logging.WARNING)  # orbax reports every file it writes
    name = pathlib.Path(config_flags.get_config_filename(flags.FLAGS["config"])).stem
    try:
        launching.run(CONFIG.value, name)
    except launching.USER_ERRORS as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:  # before the loop, or a second time in it
        sys.exit("stopped at once; what the run had saved is in its folder")


def parse(argv: list[str]) -> list[str]:
    """Flags, with a line instead of a traceback where one is wrong."""
    try:
        rest = flags.FLAGS(argv)
        flags.FLAGS["config"].value.lock()  # a file that cannot be read says so only when used
        return rest
    except (flags.Error, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        message = error
        while isinstance(message, BaseException):  # some wrap another one
            message = message.args[-1]
        # Some carry a whole traceback as text; what is wrong stands last.
        lines = [line.strip() for line in str(message).strip().splitlines()]
        sys.exit(f"bad flag: {' '.join(lines if len(lines) < 3 else lines[-1:])}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
