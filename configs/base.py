"""What all experiments share: the method's own constants, and the machinery of presets.

An experiment is a file beside this one with a function for each preset; it starts from `small` or
`paper` below and sets what its benchmark has of its own:

    def get_config(names=""):
        return base.experiment(__file__, names, {"small": small, "paper": paper})
"""

import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_collections

from configs import variants
from sera_jax import rewards

DEFAULT_VARIANT = "sera"


def experiment(
    file: str,
    names: str,
    presets: Mapping[str, Callable[[], ml_collections.ConfigDict]],
    alone: Mapping[str, Any] = MappingProxyType({}),
) -> ml_collections.ConfigDict:
    """The locked config of "PRESET,VARIANT,..." in `file`: each part may be left out.

    `alone` are fields of the small preset's agent without delegation, whose context has to hold
    the history of all its steps.
    """
    parts = [part for part in names.split(",") if part]
    preset = parts.pop(0) if parts and parts[0] not in variants.KNOWN else choose_preset()
    if preset not in presets:
        path = f"{pathlib.Path(file).parent.name}/{pathlib.Path(file).name}"
        known = " or ".join(f":{name}" for name in presets)
        raise ValueError(f"{path} has no preset {preset!r}: use {known}")
    config = presets[preset]()
    config.preset = preset
    variants.apply(config, *(parts or [DEFAULT_VARIANT]))
    if preset == "small" and not config.rollout.delegation:
        variants.set_fields(config, alone)
    return config.lock()


def choose_preset() -> str:
    """`paper` where JAX finds an accelerator, else `small`; says so in one line."""
    import jax

    backend = jax.default_backend()
    preset, other = ("small", "paper") if backend == "cpu" else ("paper", "small")
    print(f"JAX runs on {backend}: preset {preset} (force the other one with CONFIG.py:{other})")
    return preset


def common() -> ml_collections.ConfigDict:
    """The method's own constants (METHOD 1 to 5), and settings that no benchmark changes."""
    config = ml_collections.ConfigDict()
    config.preset = ""
    config.benchmark = ""  # a package of sera_jax.worlds
    config.seed = 0

    config.run = ml_collections.ConfigDict()
    config.run.folder = ""  # "": a new one under runs/; one with checkpoints is resumed
    config.run.checkpoint_every = 10  # optimizer steps
    config.run.keep_checkpoints = 2  # the newest
    config.run.keep_every = 0  # optimizer steps; checkpoints of these stay for good; 0: none
    config.run.save_trees = 8  # trees written a step
    config.run.tree_bytes = 200_000_000  # of all trees written, compressed

    config.variants = ""  # what the config was made with, comma-separated (configs/variants.py)
    config.cycle = (("execution", 1),)  # objectives and how many steps of each, in turn
    config.labels = "judge"  # what scores children in execution steps: "judge", "rubric", "none"
    config.advantages = "leave_one_out"  # or "group", GRPO's, for single agents
    config.rewards = ml_collections.ConfigDict()
    # Functions of your own go here as they are: Tree -> {node id: reward}, Tree -> {event id:
    # reward}, (scores, outcomes) -> reward. What they leave out is not trained.
    config.rewards.execution = rewards.verified_rewards
    config.rewards.decomposition = rewards.leaf_coverage
    config.rewards.rubric = rewards.ranking_reward
    config.judge = ""  # who gives y of a child or attempt: one of VERIFIERS, or "external"
    config.judge_noise = 0.0  # share of its labels that are flipped (METHOD 9)

    config.rubrics = ml_collections.ConfigDict()
    config.rubrics.attempts = 8  # B
    config.rubrics.fork_budget = 16  # worlds a tree, its own included
    config.rubrics.baseline = "batch"  # or "task": leave-one-out within one root task
    config.rubrics.writer = "policy"  # or "external", or "global": one rubric for every goal
    config.rubrics.scorer = "policy"  # or "external"
    config.rubrics.weights = "shared"  # the scorer's: or "frozen", a copy of the first policy
    config.rubrics.score_source = "weighted"  # or "stated": the scorer's own total
    config.rubrics.global_criteria = (
        ("all that the goal names is done", 3.0),
        ("nothing that others need was used up or left half done", 1.0),
        ("the report says what is true", 1.0),
        ("no action was wasted", 1.0),
    )

    config.external = ml_collections.ConfigDict()  # an OpenAI-compatible endpoint
    config.external.url = "http://127.0.0.1:8000/v1"
    config.external.model = ""
    config.external.key_env = "OPENAI_API_KEY"  # "": an endpoint without a key
    config.external.timeout = 60.0  # seconds a request
    config.external.requests_per_second = 0.0  # 0: no limit
    config.external.max_concurrency = 16
    config.external.cache = ""  # folder of answers; "": nothing is kept
    config.external.parameters = ml_collections.ConfigDict()  # of every request, over the usual

    config.rollout = ml_collections.ConfigDict()
    config.rollout.delegation = True
    config.rollout.max_depth = 3
    config.rollout.max_steps = 20
    config.rollout.max_children = 0  # a tree; 0: no cap
    config.rollout.temperature = 1.0

    config.train = ml_collections.ConfigDict()
    config.train.tasks = 8  # an optimizer step
    config.train.trees = 8  # a task (K)
    config.train.loss = "cispo"  # or "grpo"
    # Sample a step while the one before trains: of runs with one objective (METHOD 5).
    config.train.overlap = False
    config.train.clip_low = 0.0
    config.train.clip_high = 5.0
    config.train.weight_decay = 0.017
    config.train.b1 = 0.9
    config.train.b2 = 0.95
    config.train.mu_dtype = "float32"  # of AdamW's first moment, or "bfloat16"
    config.train.eps = 1e-8
    config.train.clip_norm = 1.0
    config.train.share_prefixes = False  # computed once where that pays (prefixes.py)

    config.mesh = ml_collections.ConfigDict()  # of the trainer; the devices left are "data"
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.server = ml_collections.ConfigDict()
    config.server.url = ""  # comma-separated; "": started here, watched and restarted
    config.server.kind = "embedded"  # of the servers started here, or "sglang"
    config.server.count = 1  # of the servers started here
    config.server.evaluator_url = ""  # of the frozen evaluator, where rubrics.weights asks for one
    config.server.api_key_env = "SERA_API_KEY"  # names of the variables that hold the keys
    config.server.admin_key_env = "SERA_ADMIN_API_KEY"
    config.server.max_concurrency = 64
    config.server.timeout = 600.0  # seconds an attempt of a request
    config.server.total_timeout = 3600.0  # seconds a request, with waiting and asking again
    config.server.patience = 600.0  # seconds to wait for servers that are away; then the run stops
    config.server.hang_timeout = 60.0  # seconds without an answer; one started here is restarted
    return config


def small() -> ml_collections.ConfigDict:
    """Any machine: a policy of under a million parameters, made by the warm start below."""
    config = common()
    config.model = ml_collections.ConfigDict()
    config.model.path = ""  # "": made by the warm start below
    config.model.dtype = "float32"
    config.prompts = "compact"

    config.train.steps = 20
    config.train.learning_rate = 3e-4
    config.train.warmup_steps = 1
    config.train.rows = 8
    config.train.remat = "none"
    config.train.logprob_chunk = 512

    config.server.slots = 80
    config.server.replicas = 2

    config.tasks = ml_collections.ConfigDict()
    config.eval = ml_collections.ConfigDict()
    config.eval.temperature = 1.0

    config.warmstart = ml_collections.ConfigDict()
    config.warmstart.seed = 0
    config.warmstart.hidden_size = 128
    config.warmstart.intermediate_size = 256
    config.warmstart.num_layers = 3
    config.warmstart.num_heads = 2
    config.warmstart.num_kv_heads = 2
    config.warmstart.head_dim = 64
    config.warmstart.learning_rate = 3e-3
    config.warmstart.rows = 2  # of a context's length, a step
    return config


def paper() -> ml_collections.ConfigDict:
    """METHOD 7: Qwen3-4B on accelerators, beside SGLang servers."""
    config = common()
    config.model = ml_collections.ConfigDict()
    config.model.path = "Qwen3-4B-Instruct-2507"  # a folder with safetensors, config and tokenizer
    config.model.dtype = "bfloat16"
    config.prompts = "full"

    config.mesh.fsdp = 8  # 4B parameters and their moments do not fit one device
    config.train.learning_rate = 3e-6
    config.train.warmup_steps = 1  # 0.1 % of the steps, at least one
    config.train.row_lengths = (8_192, 16_384)
    config.train.share_prefixes = True
    config.train.rows = 8
    config.train.remat = "full"
    config.train.logprob_chunk = 1_024

    config.server.url = "http://127.0.0.1:30000"

    config.tasks = ml_collections.ConfigDict()
    config.tasks.source = "train"
    config.eval = ml_collections.ConfigDict()
    config.eval.tiers = ("easy", "medium", "hard", "extreme")
    config.eval.temperature = 0.0
    return config
