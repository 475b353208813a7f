"""The --config flag of all commands, and flags that say in a line what is wrong with them."""

import os
import sys

from absl import flags
from ml_collections import config_flags

# On a CPU the batch is split over one device a core, which beats one device on all cores. Said
# before the config is read, for reading it may ask JAX for its devices.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2" if (os.cpu_count() or 1) >= 2 else "1")

CONFIG = config_flags.DEFINE_config_file("config", None, "FILE.py or FILE.py:PRESET")
flags.mark_flag_as_required("config")


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
