"""A byte-level BPE tokenizer for the small model, trained on the environment's own text.

Saved in Hugging Face form with a chat template, so that trainer, embedded server and SGLang read
it like any other. The protocol's fixed strings are tokens of their own, which makes an action four
tokens and lets generation stop at a closing tag; so are strings that the benchmark names, such as
items, which a model this small could not reliably spell.
"""

import pathlib
import re
from collections.abc import Iterable, Sequence

import tokenizers
import transformers

from sera_jax.rollout.rubric_text import SPELLING
from sera_jax.warmstart.script import BLOCKS

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
PROTOCOL = (*BLOCKS, *SPELLING)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train(
    corpus: Iterable[str], whole: Sequence[str], vocabulary: int
) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` tokens; each of the strings `whole` is one of them.

    Raises ValueError when the fixed tokens alone do not fit.
    """
    fixed = [*PROTOCOL, *whole]
    room = vocabulary - len(fixed)
    if room < 256 + len(ROLES) + 2:
        raise ValueError(
            f"a vocabulary of {vocabulary} is too small: bytes, roles and whole strings fill it"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    # One word with the blank before it, or one run of punctuation: merges never cross words.
    words = tokenizers.Regex(r" ?\w+| ?[^\s\w]+|\s+")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(words, "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=room,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The fixed strings are cut out beforehand, as they will be when the tokenizer is used.
    cut = re.compile("|".join(re.escape(text) for text in sorted(fixed, key=len, reverse=True)))
    tokenizer.train_from_iterator(
        (piece for text in corpus for piece in cut.split(text) if piece), trainer
    )
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in fixed])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def load(folder: str | pathlib.Path) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder, read from the disk alone."""
    return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
