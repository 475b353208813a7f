"""Evaluates a policy: python launch/evaluate.py --config=configs/textworld.py:small
--checkpoint=runs/NAME/policy [--n=2] [--judge=policy|external] [--audit] [--out=FOLDER]"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # of a missing torch

from absl import app, flags, logging

from launch.config_flag import CONFIG, parse

FLAGS = flags.FLAGS
flags.DEFINE_string("checkpoint", None, "Policy folder in the Hugging Face layout.", required=True)
flags.DEFINE_integer("n", 1, "Candidates at every delegation (METHOD 8).", lower_bound=1)
flags.DEFINE_enum("judge", "policy", ["policy", "external"], "Who chooses among candidates.")
flags.DEFINE_bool("audit", False, "Measure how rubrics rank attempts instead (METHOD 9).")
flags.DEFINE_string("out", None, "Folder of the results; default: beside the checkpoint.")


def main(_) -> None:
    from sera_jax import checkpoint_evaluation, launching

    logging.set_verbosity(logging.WARNING)
    policy = pathlib.Path(FLAGS.checkpoint)
    name = "audit" if FLAGS.audit else f"evaluation-n{FLAGS.n}-{FLAGS.judge}"
    folder = pathlib.Path(FLAGS.out) if FLAGS.out else policy.parent / name
    try:
        if FLAGS.audit:
            print(checkpoint_evaluation.audit(CONFIG.value, policy, folder))
        else:
            selection = checkpoint_evaluation.Selection(FLAGS.n, FLAGS.judge)
            print(checkpoint_evaluation.success(CONFIG.value, policy, folder, selection))
    except launching.USER_ERRORS as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
