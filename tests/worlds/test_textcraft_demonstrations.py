import asyncio
import dataclasses
import random

import pytest

from sera_jax import rewards
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.warmstart import play, tokenizer
from sera_jax.worlds import textcraft_synth as tcs
from sera_jax.worlds.textcraft_synth import demonstrations
from sera_jax.worlds.textcraft_synth.demonstrations import Mistakes, Script

NONE = Mistakes(*(0.0,) * len(dataclasses.fields(Mistakes)))
LIMITS = RolloutConfig(context_length=100_000, max_new_tokens=100_000)


@pytest.fixture(scope="module")
def tasks(textcraft_data):
    return tcs.fresh("dev", ("easy", "medium"), 0, 8)


@pytest.fixture(scope="module")
def prompts(tasks):
    whole = demonstrations.vocabulary(tasks)
    return Prompts(tokenizer.train([], whole, 2_048), "textcraft_synth", "compact")


def scripted(tasks, prompts, mistakes, graded=False, **limits):
    config = dataclasses.replace(LIMITS, **limits)
    script = lambda task, rng: Script(task, rng, mistakes)  # noqa: E731
    return asyncio.run(play.play(tcs, tasks, script, prompts, config, seed=0, graded=graded))


def test_without_mistakes_trees_solve_every_task_within_the_limits(tasks, prompts):
    trees, _ = scripted(tasks, prompts, NONE)
    assert all(tree.reward == 1.0 for tree in trees)
    nodes = [node for tree in trees for node in tree.nodes]
    assert {node.status for node in nodes} == {"finished"}
    assert {step.kind for node in nodes for step in node.steps} == {"action", "delegate", "finish"}
    # Nobody crafts what it could have made: an ingredient of depth 2 or more has its own child.
    assert max(node.depth for node in nodes) == 3
    assert [len(tree.nodes) for tree in trees if "depth 2" in tree.info["family"]] == [1] * 3


def test_alone_nobody_is_sent_and_shallow_items_are_made(tasks, prompts):
    easy = [task for task in tasks if task.tier == "easy"]
    trees, _ = scripted(easy, prompts, NONE, delegation=False)
    assert all(tree.reward == 1.0 and len(tree.nodes) == 1 for tree in trees)


def test_each_mistake_shows(tasks, prompts):
    def trees(**mistakes):
        return scripted(tasks[1::2], prompts, dataclasses.replace(NONE, **mistakes))[0]

    alone = trees(works_alone=1.0)
    assert all(len(tree.nodes) == 1 for tree in alone)
    for tree in trees(guesses=1.0, works_alone=1.0):
        assert tree.root.steps[0].observation.startswith("no ")
    for falsely in (0.0, 1.0):
        stopped = trees(stops_early=0.2, reports_falsely=falsely)
        reports = {n.message.split()[0] for t in stopped for n in t.nodes if not made(n)}
        assert ("made" in reports) is bool(falsely)
    wrong = trees(orders_wrong=1.0)
    assert not any(tree.reward for tree in wrong)
    asked = [tree.root.steps[0].observation.split("lacks ")[1] for tree in wrong]
    goals = [child.goal for tree in wrong for child in tree.children("0")]
    assert all(goal.removeprefix("craft ") not in lacks for goal in goals for lacks in asked)
    spread = trees(hands_on_all=1.0)
    assert sum(len(t.nodes) for t in spread) > sum(len(t.nodes) for t in trees())
    assert any(len(s.children) > 1 for t in trees(all_at_once=1.0) for s in t.root.steps)


def made(node):
    """Whether the last thing that the node saw was that its goal is made."""
    return len(node.steps) > 1 and node.steps[-2].observation.endswith("done")


def test_what_info_spells_out_is_crafted_word_for_word(tasks, prompts):
    (tree,), _ = scripted(tasks[:1], prompts, NONE)
    asked, *_, crafted, finished = tree.root.steps
    spelled = asked.observation.splitlines()[0]  # asked again before it is crafted: the same
    assert crafted.text == f"<action>{spelled}</action>"
    assert finished.text.startswith("<finish>made ")


def test_the_same_seed_plays_the_same_trees(tasks, prompts):
    assert scripted(tasks[:3], prompts, Mistakes()) == scripted(tasks[:3], prompts, Mistakes())


def test_items_and_numbers_are_single_tokens(prompts):
    ids = prompts.encode("<action>craft 2 m0_i1_10 using 12 m0_ore, 1 raw_a0</action>")
    pieces = [prompts.tokenizer.decode([i]) for i in ids]
    assert {" 2", " m0_i1_10", " using 12", " m0_ore", ", 1", " raw_a0"} <= set(pieces)


def test_rubrics_and_scores_are_shown_and_of_uneven_use(tasks, prompts):
    mistakes = dataclasses.replace(Mistakes(), stops_early=0.1)
    trees, calls = scripted(tasks, prompts, mistakes, graded=True)
    children = [node for tree in trees for node in tree.nodes if node.parent is not None]
    assert all(4 <= len(child.rubric.criteria) <= 8 for child in children)
    assert len(calls) > len(children)
    scores = {True: [], False: []}
    for child in children:
        if (score := rewards.node_score(child)) is not None:
            scores[child.message.startswith("made ")].append(score)
    means = {made: sum(found) / len(found) for made, found in scores.items()}
    assert means[False] + 0.1 < means[True] < 1.0


def test_warm_start_tasks_have_names_of_their_own(textcraft_data):
    config = dataclasses.make_dataclass("Config", ["tiers", "tasks"])(("easy",), 2)
    first, second = demonstrations.tasks(config, random.Random(0))
    assert 0 != first.names != second.names != 0
