import asyncio
import collections
import dataclasses
import random

import pytest

from sera_jax import rewards
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.warmstart import tokenizer
from sera_jax.warmstart.play import play as play_scripted
from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync import curriculum, demonstrations
from sera_jax.worlds.textworld_sync.demonstrations import Mistakes, Script

NONE = Mistakes(**{field.name: 0.0 for field in dataclasses.fields(Mistakes)})
LIMITS = RolloutConfig(context_length=100_000, max_new_tokens=100_000)


@pytest.fixture(scope="module")
def tasks():
    return curriculum.fresh("dev", ("easy", "medium"), 0, 28)


@pytest.fixture(scope="module")
def prompts(tasks):
    names = demonstrations.vocabulary(tasks)
    return Prompts(tokenizer.train([], names, 512), "textworld_sync", "compact")


def play(tasks, prompts, mistakes, **limits):
    config = dataclasses.replace(LIMITS, **limits)
    return scripted(tasks, prompts, mistakes, config)[0]


def play_graded(tasks, prompts, mistakes):
    return scripted(tasks, prompts, mistakes, LIMITS, graded=True)


def scripted(tasks, prompts, mistakes, config, **options):
    script = lambda task, rng: Script(task, rng, mistakes)  # noqa: E731
    return asyncio.run(play_scripted(tws, tasks, script, prompts, config, seed=0, **options))


def test_without_mistakes_every_task_is_solved_by_a_tree(tasks, prompts):
    trees = play(tasks, prompts, NONE)
    assert all(tree.reward == 1.0 for tree in trees)
    for task, tree in zip(tasks, trees, strict=True):
        children = tree.children("0")
        assert [child.goal.split(" : ")[0] for child in children] == [
            f"eat {dish.dish_id}" for dish in task.dishes
        ]
        assert {step.kind for node in tree.nodes for step in node.steps} <= {
            "action", "delegate", "finish"
        }  # fmt: skip


def test_mistakes_leave_something_to_learn(tasks, prompts):
    trees = play(tasks, prompts, Mistakes())
    assert 0.2 < sum(tree.reward for tree in trees) / len(trees) < 0.95


def test_each_mistake_shows(tasks, prompts):
    lazy = play(tasks, prompts, dataclasses.replace(NONE, forgets_to_eat=1.0, does_not_check=1.0))
    assert not any(tree.reward for tree in lazy)
    assert all(n.message.endswith("not eaten") for tree in lazy for n in tree.children("0"))
    alone = play(tasks, prompts, dataclasses.replace(NONE, works_alone=1.0))
    assert all(len(tree.nodes) == 1 for tree in alone)
    # Twenty steps are enough for every easy task and not for every medium one.
    by_tier = collections.defaultdict(list)
    for tree in alone:
        by_tier[tree.info["tier"]].append(tree.reward)
    assert set(by_tier["easy"]) == {1.0}
    assert 0 < sum(by_tier["medium"]) < 0.7 * len(by_tier["medium"])
    deep = play(tasks, prompts, dataclasses.replace(NONE, sub_delegates=1.0))
    assert {max(node.depth for node in tree.nodes) for tree in deep} == {2}


def test_pairs_start_two_children_in_one_step_where_the_team_can_hold_two(tasks, prompts):
    trees = play(tasks, prompts, dataclasses.replace(NONE, pairs=1.0))
    for task, tree in zip(tasks, trees, strict=True):
        most = max(len(step.children) for step in tree.root.steps)
        assert most == (1 if demonstrations.tight(task) else 2)


def test_without_delegation_nobody_is_sent(tasks, prompts):
    assert all(len(t.nodes) == 1 for t in play(tasks, prompts, Mistakes(), delegation=False))


def test_the_same_seed_plays_the_same_trees(tasks, prompts):
    assert play(tasks[:4], prompts, Mistakes()) == play(tasks[:4], prompts, Mistakes())


def test_shuffled_preparations_are_the_same_ones_dealt_anew(tasks):
    task, rng = tasks[1], random.Random(1)
    shuffled = [demonstrations.shuffle_preparations(task, rng) for _ in range(5)]
    for other in shuffled:
        for before, after in zip(task.dishes, other.dishes, strict=True):
            assert [i.name for i in before.recipe] == [i.name for i in after.recipe]
            assert sorted(i.preparation for i in before.recipe) == sorted(
                i.preparation for i in after.recipe
            )
    assert any(other != task for other in shuffled)


def test_rubrics_and_scores_are_shown_and_of_uneven_use(tasks, prompts):
    trees, calls = play_graded(tasks, prompts, Mistakes())
    children = [node for tree in trees for node in tree.nodes if node.parent is not None]
    assert all(child.rubric and child.rubric.criteria for child in children)
    assert sum(len(child.rubric.criteria) >= 4 for child in children) == len(children)
    assert len(calls) > len(children)
    texts = [prompts.tokenizer.decode(tokens[start:]) for tokens, start in calls]
    assert all(text.startswith('{"') and text.endswith(tokenizer.END) for text in texts)
    # Scores and what happened: related, and not the same.
    gaps = {True: [], False: []}
    for tree in trees:
        for node in tree.nodes:
            if node.parent is not None and (score := rewards.node_score(node)) is not None:
                gaps["not" not in (node.message or "")].append(score)
    means = {done: sum(scores) / len(scores) for done, scores in gaps.items()}
    assert means[False] + 0.2 < means[True] < 1.0
