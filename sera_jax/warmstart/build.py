"""Makes the small preset's first policy: play, tokenizer, supervised steps, checkpoint.

The result is a Hugging Face folder like any other policy's, kept in a cache under a hash of
everything it depends on, so that a second run starts at once.
"""

import asyncio
import hashlib
import importlib
import json
import pathlib
import random
import tempfile
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from sera_jax import batching, train_step
from sera_jax.caching import cache_folder
from sera_jax.model import huggingface, qwen3, sharding
from sera_jax.progress import Progress
from sera_jax.rollout import prompts as wording
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.warmstart import play, tokenizer

PACKAGE = pathlib.Path(__file__).parents[1]
WORLDS = "sera_jax.worlds"
EMBEDDING_SCALE = 0.3
MAX_POSITIONS = 4096  # RoPE has no limit of its own; servers ask for one
CORPUS_TREES = 64  # enough text to learn merges from; all its words occur


def prepare(config) -> pathlib.Path:
    """Folder of the first policy, from the cache or made now (minutes, with progress).

    Of several processes all make it, or none does, and the first one writes.
    """
    folder = place(config)
    if (folder / "config.json").exists():
        print(f"warm start: {folder} (cached)")
        return folder
    print(f"warm start: no policy yet, making one in {folder}")
    prompts, sequences = demonstrate(config)
    params, model = imitate(config, prompts, sequences)
    with tempfile.TemporaryDirectory() as beside:
        prompts.tokenizer.save_pretrained(beside)
        huggingface.export(params, model, folder, tokenizer_dir=beside)
    return folder


def place(config) -> pathlib.Path:
    """Where the cache has the first policy, once it is made."""
    return cache_folder() / "warmstart" / content_hash(config)


def demonstrate(config) -> tuple[wording.Prompts, list[batching.Sequence]]:
    """Demonstrations, and the prompts (with a tokenizer of their text) they were made with."""
    start, shown = config.warmstart, _demonstrations(config)
    tasks = shown.tasks(start, random.Random(start.seed))
    whole = shown.vocabulary(tasks)
    # A first tokenizer without merges spells the text out; the second is trained on that text.
    spelled = _prompts(config, tokenizer.train([], whole, start.vocabulary))
    text = _play(tasks[:CORPUS_TREES], spelled, config, "text", graded=True, context=1_000_000)
    corpus = [spelled.tokenizer.decode(sequence.tokens) for sequence in text]
    prompts = _prompts(config, tokenizer.train(corpus, whole, start.vocabulary))
    # Of every eight tasks one is played alone, for the baselines, and three show the evaluator.
    kinds = [tasks[k::8] for k in range(8)]
    alone, graded, plain = kinds[0], sum(kinds[1:4], []), sum(kinds[4:], [])
    sequences = _play(plain, prompts, config, "demonstrations")
    sequences += _play(graded, prompts, config, "demonstrations with rubrics", graded=True)
    sequences += _play(alone, prompts, config, "demonstrations alone", delegation=False)
    return prompts, sequences


def imitate(config, prompts: wording.Prompts, sequences: list[batching.Sequence]):
    """(params, model config) after supervised steps on all that the demonstrations wrote."""
    start = config.warmstart
    model = qwen3.Config(
        vocab_size=len(prompts.tokenizer),
        hidden_size=start.hidden_size,
        intermediate_size=start.intermediate_size,
        num_layers=start.num_layers,
        num_heads=start.num_heads,
        num_kv_heads=start.num_kv_heads,
        head_dim=start.head_dim,
        rope_theta=10_000.0,
        max_position_embeddings=MAX_POSITIONS,
    )
    optimizer = train_step.make_optimizer(
        start.learning_rate, warmup_steps=10, cosine_steps=start.steps, weight_decay=0.01
    )
    setup = train_step.Setup(model, optimizer, mesh=sharding.make_mesh())
    params = qwen3.init(jax.random.key(start.seed), model)
    # From a usual start of 0.02 a model this small takes far longer to learn to copy names.
    params["embed"] *= EMBEDDING_SCALE / jnp.std(params["embed"])
    state = train_step.init_state(params, setup)
    rng = np.random.default_rng(start.seed)
    queue: list[batching.Batch] = []
    with Progress("warm start", start.steps, "steps") as progress:
        for step in range(start.steps):
            if not queue:
                queue = _epoch(sequences, config, rng)
            state, metrics = train_step.update(state, [queue.pop()], "cross_entropy", setup)
            progress(step + 1, f"loss {float(metrics['loss']):.3f}")
    return jax.device_get(state.params), model


def _epoch(sequences, config, rng: np.random.Generator) -> list[batching.Batch]:
    """All sequences once, in random batches of a few rows each."""
    length, rows = config.warmstart.context_length, config.warmstart.rows
    order = rng.permutation(len(sequences))
    # Packed in random groups: packing everything at once would sort the epoch by length.
    groups = np.array_split(order, max(1, sum(len(s.tokens) for s in sequences) // (rows * length)))
    batches = []
    for group in groups:
        members = [sequences[i] for i in group]
        batches += batching.pack(members, row_length=(length,), rows=rows)
    return [batches[i] for i in rng.permutation(len(batches))]


def _play(
    tasks,
    prompts,
    config,
    title: str,
    *,
    graded: bool = False,
    delegation: bool = True,
    context: int = 0,
) -> list[batching.Sequence]:
    """Plays the tasks; each agent's trajectory and each evaluator's call is a sequence."""
    context = context or config.warmstart.context_length
    limits = RolloutConfig(context_length=context, max_new_tokens=context, delegation=delegation)
    worlds = importlib.import_module(f"{WORLDS}.{config.benchmark}")
    script, seed = _demonstrations(config).Script, config.warmstart.seed
    with Progress(title, len(tasks), "trees") as progress:
        played = play.play(worlds, tasks, script, prompts, limits, seed, progress, graded=graded)
        trees, calls = asyncio.run(played)
    sequences = batching.from_trees(trees, [{n.id: 1.0 for n in t.nodes} for t in trees])
    for tokens, first in calls:
        mask = [index >= first for index in range(len(tokens))]
        sequences.append(batching.supervised(tokens, mask))
    return sequences


def _prompts(config, trained) -> wording.Prompts:
    return wording.Prompts(trained, config.benchmark, config.prompts)


def _demonstrations(config) -> ModuleType:
    """What the benchmark shows its first policy (worlds/base.py, 4)."""
    return importlib.import_module(f"{WORLDS}.{config.benchmark}.demonstrations")


def content_hash(config) -> str:
    """Of all that another first policy would come of: settings, shared code, the benchmark's."""
    settings = {
        "benchmark": config.benchmark,
        "warmstart": config.warmstart.to_dict(),
        "prompts": config.prompts,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for source in sources(config.benchmark, config.prompts):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def sources(benchmark: str, style: str) -> list[pathlib.Path]:
    """Files whose change makes another first policy of `benchmark`; other benchmarks' do not."""
    shared = [PACKAGE / "train_step.py", PACKAGE / "model/qwen3.py", PACKAGE / "worlds/base.py"]
    shared += [*(PACKAGE / "warmstart").glob("*.py"), *(PACKAGE / "rollout").glob("*.py")]
    own = [*(PACKAGE / "worlds" / benchmark).rglob("*.py")]
    own += (wording.TEMPLATES / benchmark / style).glob("*.jinja")
    return sorted(shared + own)
