"""A run folder made by hand: every objective, a forked group, and text that means harm."""

import itertools
import json

import numpy as np
import tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from sera_jax import rewards
from sera_jax.report.measures import measures
from sera_jax.tree_writer import TreeWriter
from sera_jax.trees import Attempt, Call, Criterion, Node, Rubric, Score, Step, Tree

HOSTILE = (
    "</script><script>window.harmed = 1; alert(1)</script><img src=x onerror=alert(2)>"
    "<!-- \u2028 \u2029 \x00 \x1b[31m \u202e reversed \ufeff \ud800 ${1} @@DATA@@ &lt;b&gt; ]]>"
)
RUBRIC = Rubric(
    criteria=(
        Criterion("ingredients", "Every ingredient of the dish was prepared as asked.", 0.5),
        Criterion("dish", "The dish was put together from them.", 0.3),
        Criterion(f"served {HOSTILE}", f"It was served, and to the right guest. {HOSTILE}", 0.2),
    ),
    text='{"criteria": "as JSON"}',
)
ALPHABET = {c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}


def tokenizer() -> tokenizers.Tokenizer:
    """A token a byte."""
    made = tokenizers.Tokenizer(BPE(vocab=ALPHABET, merges=[]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = ByteLevelDecoder()
    return made


def encode(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text.encode("utf-8", "replace").decode()).ids)


def logprobs(count: int) -> tuple[float, ...]:
    return tuple(-np.random.default_rng(count).exponential(0.5, count))


class Author:
    """Writes nodes; the calls of one tree are counted as a rollout counts them."""

    def __init__(self):
        self.orders = itertools.count()

    def node(self, name, goal, turns, status="finished", message="done", **fields) -> Node:
        """`turns`: (kind, text, observation, children) each."""
        tokens, steps = encode(f"task: {goal}\n"), []
        for kind, text, observation, *children in turns:
            ids = encode(text)
            steps.append(
                Step(
                    kind,
                    text,
                    tuple(children),
                    observation,
                    start=len(tokens),
                    end=len(tokens) + len(ids),
                    logprobs=logprobs(len(ids)),
                    versions=(("3", len(ids)),),
                    order=next(self.orders),
                )
            )
            tokens += ids + encode(observation)
        bare = name.split("@")[-1]
        return Node(
            id=name,
            parent=None if name == "0" else name.rpartition("." if "." in bare else "@")[0],
            depth=name.count("."),
            goal=goal,
            status=status,
            message=message,
            steps=tuple(steps),
            tokens=tokens,
            **fields,
        )

    def call(self, text: str) -> Call:
        prompt, ids = encode("write a rubric: "), encode(text)
        return Call(prompt + ids, len(prompt), logprobs(len(ids)), (("3", len(ids)),), text)


DELEGATION = 'I delegate. <delegate>{"goal": "serve dish_1"}</delegate> Done.'
ACTION = ("action", "<action>cook carrot in oven</action>", "You cook the carrot.")
FINISH = ("finish", "<finish>done</finish>", "")


def plain_tree(step: int, number: int, reward: float, hostile: bool = False) -> Tree:
    write = Author()
    said = HOSTILE if hostile else "You are in the kitchen."
    goal = f"serve dish_1 {HOSTILE}" if hostile else "serve dish_1"
    root = write.node(
        "0",
        "",
        [
            ("delegate", DELEGATION, "child: done", "0.0", "0.1"),
            ("invalid", f"<action>{said}", "No such block."),
            ("delegate", '<delegate>{"goal": ""}</delegate>', "The goal is empty."),
            FINISH,
        ],
        verified=reward > 0,
    )
    children = [
        write.node("0.0", goal, [ACTION, FINISH], verified=True, rubric=RUBRIC,
                   score=Score(1, (1.0, 0.8, 0.5), 0.9)),
        write.node("0.1", "clean up", [ACTION], "out_of_steps", None, verified=False),
    ]  # fmt: skip
    info = {"tier": "easy" if number % 2 else "medium", "family": "critical_path",
            "tree_id": f"{step}/{number}", "world_actions": 7}  # fmt: skip
    task = f"task_{number}{HOSTILE if hostile else ''}"
    return Tree(task, reward, (root, *children), info)


def forked_tree(step: int, attempts: int = 8) -> Tree:
    """A delegation forked into attempts whose scores rank them well but for one pair."""
    write = Author()
    scores = (0.9, 0.2, 0.75, 0.3, 0.8, 0.1, 0.35, 0.55)[:attempts]
    outcomes = (True, False, True, False, True, False, True, False)[:attempts]
    root = write.node("0", "", [("delegate", DELEGATION, "child: done", "0.0"), FINISH])
    call = write.call(f"Here is a rubric. {HOSTILE}")
    kept = []
    for index, (score, outcome) in enumerate(zip(scores, outcomes, strict=True)):
        name = f"0.0@{index}"
        inner = write.node(name, "serve dish_1", [ACTION, ACTION, FINISH], verified=outcome)
        message = f"attempt {index} says: {HOSTILE}" if index == 1 else "dish_1 is served"
        graded = Score(1, (score, score, score), round(score, 1))
        nodes = (inner,) if index else ()
        kept.append(Attempt(index, "finished", message, outcome, graded, nodes))
    kept[-1] = Attempt(attempts - 1, "out_of_context", None, False, None, kept[-1].nodes)
    child = write.node(
        "0.0",
        "serve dish_1",
        [ACTION, FINISH],
        verified=True,
        rubric=RUBRIC,
        rubric_call=call,
        score=kept[0].score,
        attempts=tuple(kept),
    )
    info = {"tier": "easy", "family": "hierarchical"}
    return Tree("forked_task", 1.0, (root, child), info)


def objective_at(step: int) -> str:
    return "decomposition" if step % 5 == 3 else "rubric" if step % 5 == 4 else "execution"


def credit(tree: Tree, objective: str) -> tuple[dict, dict]:
    """(rewards, advantages) with the keys that each objective uses."""
    if objective == "execution":
        found = rewards.verified_rewards(tree)
    elif objective == "decomposition":
        found = rewards.leaf_coverage(tree)
    else:
        found = {
            node.id: rewards.ranking_reward(
                rewards.attempt_scores(node), [a.verified for a in node.attempts]
            )
            for node in tree.forked()
        }
    return found, {key: value - 0.4 for key, value in found.items()}


def write_run(folder, steps: int = 10, trees: int = 4) -> None:
    """A whole run folder; its last tree is hostile, rubric steps fork."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {"benchmark": "textworld_sync", "preset": "small", "seed": steps}
    (folder / "config.json").write_text(json.dumps(config))
    lines = []
    with TreeWriter(folder, 100_000_000) as writer:
        for step in range(steps):
            objective = objective_at(step)
            last = step == steps - 1
            made = [
                plain_tree(step, n, float((step + n) % 3 > 0), hostile=last and n == trees - 1)
                for n in range(trees)
            ]
            if objective == "rubric":
                made[0] = forked_tree(step)
            found = [credit(tree, objective) for tree in made]
            trainer = [
                {node.id: [p + 1e-4 for s in node.steps for p in s.logprobs] for node in tree.nodes}
                for tree in made
            ]
            writer.write(
                step,
                objective,
                made,
                rewards=[one for one, _ in found],
                advantages=[one for _, one in found],
                trainer_logprobs=trainer,
            )
            lines.append(metrics_line(step, objective, made, [one for _, one in found]))
            while not writer._queue.empty():
                pass
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for when, rate in (("before", 3), ("after", 1)):
        records = [
            {"task_id": f"t{i}", "tier": ("easy", "medium")[i % 2], "family": "critical_path",
             "success": int(i % 4 >= rate), "nodes": 3, "depth": 1, "tokens": 90,
             "world_actions": 12}
            for i in range(40)
        ]  # fmt: skip
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"evaluation_{when}_test.jsonl").write_text(text)


def metrics_line(step, objective, made, advantages) -> dict:
    return {
        "step": step,
        "objective": objective,
        "trees": len(made),
        "success": float(np.mean([tree.reward for tree in made])),
        "reward_by_depth": {"0": 0.5 + 0.02 * step, "1": 0.4 + 0.03 * step},
        "generated_tokens": 8000 + 50 * step,
        "tokens": 7900.0 + 50 * step,
        "ratio": 1.0 + 0.001 * step,
        "clip_fraction": 0.0,
        "logprob_gap": 1e-6 * (1 + step),
        "logprob_gap_above_0.1": 0.0,
        "loss": "nan" if step == 2 else -0.01 * step,
        "gradient_norm": 0.05,
        "seconds_sampling": 5.0,
        "seconds_training": 2.0,
        "seconds_step": 7.0,
        "supervision": {"child": {"calls": 40 * step, "input_tokens": 0, "output_tokens": 0},
                        "judge": {"calls": 8 * step, "input_tokens": 900 * step,
                                  "output_tokens": 10}},
        **measures(made, advantages),
    }  # fmt: skip
