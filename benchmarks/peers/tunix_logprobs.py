"""Log-probs of a golden checkpoint's tokens by tunix, as JSON: python tunix_logprobs.py FOLDER."""

import json
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import tunix_model
from tunix.rl import common

folder = pathlib.Path(sys.argv[1])
tokens = jnp.asarray(np.load(folder / "expected.npz")["tokens"])
positions, mask = tunix_model.causal(tokens.shape[0], tokens.shape[1] - 1)
logits, _ = tunix_model.load(folder)(tokens[:, :-1], positions, None, mask)
found = common.selective_log_softmax(logits, tokens[:, 1:])
print(json.dumps(np.pad(np.asarray(found), ((0, 0), (1, 0))).tolist()))
