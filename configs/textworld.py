"""Recursive agents on TextWorld-Sync v9 (METHOD 7).

    python launch/main.py --config=configs/textworld.py          # chooses a preset and says which
    python launch/main.py --config=configs/textworld.py:small    # any machine, no weights needed
    python launch/main.py --config=configs/textworld.py:paper    # Qwen3-4B beside SGLang servers
    python launch/main.py --config=configs/textworld.py:small,rao   # see variants.py

`small` makes its own 0.7 M parameter policy and trains it on fresh easy and medium tasks of the
train fold. On two CPU cores it takes about ten minutes and 3 GB; held-out success goes from about
one half to about nine tenths.

`paper` is the published setting; it needs accelerators, the weights and SGLang servers. Unmeasured.

Any field can be set on the command line: --config.train.steps=5
"""

import ml_collections

from configs import variants
from sera_jax import rewards

DEFAULT_VARIANT = "sera"
ALONE = {"small": (2_048, (512, 2_048)), "paper": (13_312, (8_192, 16_384))}


def get_config(names: str = "") -> ml_collections.ConfigDict:
    """The locked config of "PRESET,VARIANT,...": each part may be left out."""
    presets = {"small": small, "paper": paper}
    parts = [part for part in names.split(",") if part]
    preset = parts.pop(0) if parts and parts[0] not in variants.KNOWN else choose_preset()
    if preset not in presets:
        raise ValueError(f"configs/textworld.py has no preset {preset!r}: use :small or :paper")
    config = presets[preset]()
    config.preset = preset
    variants.apply(config, *(parts or [DEFAULT_VARIANT]))
    if not config.rollout.delegation:  # one agent keeps the whole history of its 200 steps
        config.rollout.context_length, config.train.row_lengths = ALONE[preset]
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
    config.judge = "mentions"  # who gives y of a child or attempt: a program, or "external"
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
    config.train.clip_low = 0.0
    config.train.clip_high = 5.0
    config.train.weight_decay = 0.017
    config.train.b1 = 0.9
    config.train.b2 = 0.95
    config.train.eps = 1e-8
    config.train.clip_norm = 1.0

    config.mesh = ml_collections.ConfigDict()  # of the trainer; the devices left are "data"
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.server = ml_collections.ConfigDict()
    config.server.url = ""  # comma-separated; "": one is started on loopback
    config.server.evaluator_url = ""  # of the frozen evaluator, where rubrics.weights asks for one
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

    config.server.slots = 80
    config.server.replicas = 2

    config.eval = ml_collections.ConfigDict()
    config.eval.tasks = 200  # a tier and set
    config.eval.tiers = ("easy", "medium")
    config.eval.sets = ("fresh", "test")  # fresh seeds of the train fold, the published test split
    config.eval.temperature = 1.0

    config.warmstart = ml_collections.ConfigDict()
    config.warmstart.seed = 0
    config.warmstart.tiers = ("easy", "medium")
    config.warmstart.context_length = 512
    config.warmstart.vocabulary = 640
    config.warmstart.hidden_size = 128
    config.warmstart.intermediate_size = 256
    config.warmstart.num_layers = 3
    config.warmstart.num_heads = 2
    config.warmstart.num_kv_heads = 2
    config.warmstart.head_dim = 64
    config.warmstart.tasks = 2800  # demonstration trees
    config.warmstart.steps = 2000
    config.warmstart.learning_rate = 3e-3
    config.warmstart.rows = 2  # of a context's length, a step
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

    config.mesh.fsdp = 8  # 4B parameters and their moments do not fit one device
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
