"""Trains: python launch/main.py --config=configs/textworld.py[:PRESET] [--config.FIELD=VALUE]"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # of a missing torch

from absl import app, flags, logging
from ml_collections import config_flags

from launch.config_flag import CONFIG, parse

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "coordinator",
    "",
    'Several processes are one run: HOST:PORT for process 0 to listen on, or "auto" under SLURM '
    "or on TPU VMs, which know it. Name the preset then: looking for it is too early.",
)
flags.DEFINE_integer("processes", None, "How many; not with --coordinator=auto.", lower_bound=1)
flags.DEFINE_integer("process", None, "Which of them this one is, from 0.", lower_bound=0)


def main(_) -> None:
    from sera_jax import hosts, launching

    logging.set_verbosity(logging.WARNING)  # orbax reports every file it writes
    name = pathlib.Path(config_flags.get_config_filename(FLAGS["config"])).stem
    with hosts.ending_at_once():
        try:
            if FLAGS.coordinator:
                hosts.start(FLAGS.coordinator, FLAGS.processes, FLAGS.process)
            launching.run(CONFIG.value, name)
        except launching.USER_ERRORS as error:
            sys.exit(f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:  # before the loop, or a second time in it
            sys.exit("stopped at once; what the run had saved is in its folder")


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
