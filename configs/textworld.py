"""Recursive agents on TextWorld-Sync v9 (METHOD 7).

    python launch/main.py --config=configs/textworld.py          # chooses a preset and says which
    python launch/main.py --config=configs/textworld.py:small    # any machine, no weights needed
    python launch/main.py --config=configs/textworld.py:paper    # Qwen3-4B beside SGLang servers

`small` makes its own 0.5 M parameter policy, then trains it with the execution objective on fresh
easy and medium tasks of the train fold; children are labelled by a program that reads the goal
and looks at the world. FIGURES

`paper` is the published setting; it needs accelerators, the weights and SGLang servers. Unmeasured.

Any field can be set on the command line: --config.train.steps=5
"""

import ml_collections

from sera_jax import rewards


def get_config(preset: str = "") -> ml_collections.ConfigDict:
    """The locked config of a preset: "small", "paper", or "" to choose by the machine."""
    presets = {"small": small, "paper": paper}
    if not preset:
        preset = choose_preset()
    if preset not in presets:
        raise ValueError(f"configs/textworld.py has no preset {preset!r}: use :small or :paper")
    config = presets[preset]()
    config.preset = preset
    return config.lock()


def choose_preset() -> str:
    """`paper` where JAX finds an accelerator, else `small`; says so in one line."""
    import jax

    backend = jax.default_backend()
    preset, other = ("small", "paper") if backend == "cpu" else ("paper", "small")
    print(f"JAX runs on {backend}: preset {preset} (force the other one with CONFIG.py:{other})")
    return preset


def common() -> ml_collections.ConfigDict:
    """What both presets share: the method's own constants (METHOD 1 to 5)."""
    config = ml_collections.ConfigDict()
    config.preset = ""
    config.benchmark = "textworld_sync"
    config.seed = 0

    config.run = ml_collections.ConfigDict()
    config.run.folder = ""  # "": a new one under runs/; one with checkpoints is resumed
    config.run.checkpoint_every = 10  # optimizer steps
    config.run.keep_checkpoints = 2
    config.run.save_trees = 8  # trees written a step

    config.rewards = ml_collections.ConfigDict()
    # Any function Tree -> {node id: reward}; nodes it leaves out are not trained.
    config.rewards.execution = rewards.verified_rewards
    config.judge = "mentions"  # who gives y of a child: "mentions" or "none"

    config.rollout = ml_collections.ConfigDict()
    config.rollout.delegation = True
    config.rollout.max_depth = 3
    config.rollout.max_steps = 20
    config.rollout.max_children = 0  # a tree; 0: no cap
    config.rollout.temperature = 1.0

    config.train = ml_collections.ConfigDict()
    config.train.tasks = 8  # an optimizer step
    config.train.trees = 8  # a task (K)
    config.train.clip_low = 0.0
    config.train.clip_high = 5.0
    config.train.weight_decay = 0.017
    config.train.b1 = 0.9
    config.train.b2 = 0.95
    config.train.eps = 1e-8
    config.train.clip_norm = 1.0

    config.server = ml_collections.ConfigDict()
    config.server.url = ""  # comma-separated; "": one is started on loopback
    config.server.api_key_env = "SERA_API_KEY"  # names of the variables that hold the keys
    config.server.admin_key_env = "SERA_ADMIN_API_KEY"
    config.server.max_concurrency = 64
    config.server.timeout = 600.0  # seconds a request
    return config


def small() -> ml_collections.ConfigDict:
    config = common()

    config.model = ml_collections.ConfigDict()
    config.model.path = ""  # "": made by the warm start below
    config.model.dtype = "float32"
    config.prompts = "compact"

    config.rollout.context_length = 512
    config.rollout.max_new_tokens = 48
    # Nothing in the objective charges for a child, so a small policy over-delegates: bounded here.
    config.rollout.max_children = 8

    config.tasks = ml_collections.ConfigDict()
    config.tasks.source = "fresh"  # new tasks of the train fold, or "train": the published split
    config.tasks.tiers = ("easy", "medium")
    config.tasks.action_budget = 100  # world actions, METHOD 7's training budget; 0: the task's own

    config.train.steps = 20
    config.train.learning_rate = 3e-4
    config.train.warmup_steps = 1
    config.train.row_lengths = (256, 512)
    config.train.rows = 8
    config.train.remat = "none"
    config.train.logprob_chunk = 512

    config.server.slots = 64
    config.server.replicas = 2

    config.eval = ml_collections.ConfigDict()
    config.eval.tasks = 200  # a tier and set
    config.eval.tiers = ("easy", "medium")
    config.eval.sets = ("fresh", "test")  # fresh seeds of the train fold, the published test split
    config.eval.temperature = 1.0

    config.warmstart = ml_collections.ConfigDict()
    config.warmstart.seed = 0
    config.warmstart.vocabulary = 640
    config.warmstart.hidden_size = 128
    config.warmstart.intermediate_size = 256
    config.warmstart.num_layers = 3
    config.warmstart.num_heads = 2
    config.warmstart.num_kv_heads = 2
    config.warmstart.head_dim = 64
    config.warmstart.tasks = 2800  # demonstration trees
    config.warmstart.steps = 1600
    config.warmstart.learning_rate = 3e-3
    config.warmstart.rows = 2  # of the longest row length, a step
    return config


def paper() -> ml_collections.ConfigDict:
    config = common()

    config.model = ml_collections.ConfigDict()
    config.model.path = "Qwen3-4B-Instruct-2507"  # a folder with safetensors, config and tokenizer
    config.model.dtype = "bfloat16"
    config.prompts = "full"

    config.rollout.context_length = 13_312
    config.rollout.max_new_tokens = 3_072

    config.tasks = ml_collections.ConfigDict()
    config.tasks.source = "train"
    config.tasks.tiers = ("medium", "extreme", "hard")
    config.tasks.action_budget = 100

    config.train.steps = 400
    config.train.learning_rate = 3e-6
    config.train.warmup_steps = 1  # 0.1 % of the steps, at least one
    config.train.row_lengths = (8_192, 16_384)
    config.train.rows = 8
    config.train.remat = "full"
    config.train.logprob_chunk = 1_024

    config.server.url = "http://127.0.0.1:30000"

    config.eval = ml_collections.ConfigDict()
    config.eval.tasks = 350
    config.eval.tiers = ("easy", "medium", "hard", "extreme")
    config.eval.sets = ("test",)
    config.eval.temperature = 0.0
    return config
