"""Run in SGLang's environment: log-probs of token ids by transformers and torch, in float32.

python transformers_logprobs.py '[1, 2, 3]' FOLDER...   # prints a JSON list a folder
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "third_party" / "sglang"))
import serve  # noqa: F401, what torchvision lacks there, which transformers imports
import torch
from transformers import AutoModelForCausalLM


def main(ids: list[int], folders: list[str]) -> None:
    tokens = torch.tensor([ids])
    for folder in folders:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            scores = model(tokens).logits[0, :-1].log_softmax(-1)
        print(json.dumps(scores.gather(1, tokens[0, 1:, None])[:, 0].tolist()))


main(json.loads(sys.argv[1]), sys.argv[2:])
