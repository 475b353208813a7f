import numpy as np
import pytest

from configs import textworld, variants
from sera_jax import credit
from sera_jax.trees import Attempt, Call, Criterion, Node, Rubric, Score, Step, Tree

BLOCK = '<delegate>{"goal": "g"}</delegate>'
RUBRIC = Rubric((Criterion("a", "", 0.5), Criterion("b", "", 0.5)))


def decode(ids):
    """A tokenizer whose token 9 is a whole delegation block and whose others are a letter."""
    return "".join(BLOCK if i == 9 else "x" for i in ids)


def sequences(objective, groups, config, decode):
    return credit.credit(objective, groups, config, decode).sequences


def step(kind, start, ids, children=()):
    end = start + len(ids)
    logprobs = tuple(-0.1 * i for i in ids)
    return Step(kind, decode(ids), children, "", start, end, logprobs)


def tree(reward, child=True, verified=True, **kept):
    """A root that thinks (1), delegates (9), thinks (1) and finishes (2 2); its child acts (3)."""
    launched = ("0.0",) if child else ()
    steps = (step("delegate", 2, (1, 9, 1), launched), step("finish", 7, (2, 2)))
    nodes = [Node("0", None, 0, "", "finished", "m", bool(reward), steps=steps,
                  tokens=(0, 0, 1, 9, 1, 0, 0, 2, 2))]  # fmt: skip
    if child:
        nodes.append(
            Node("0.0", "0", 1, "g", "finished", "m", verified, steps=(step("action", 1, (3,)),),
                 tokens=(0, 3), **kept)
        )  # fmt: skip
    return Tree("task", reward, tuple(nodes))


@pytest.fixture
def config():
    return textworld.get_config("small,sera")


def rao():
    return textworld.get_config("small,rao")


def test_execution_trains_all_that_was_generated_in_nodes_with_a_reward():
    groups = [[tree(1.0, verified=True), tree(0.0, verified=False)]]
    root, child, lost_root, lost_child = sequences("execution", groups, rao(), decode)
    # r - R of the other tree: 1 - 0, 1 - 0, 0 - 1, 0 - 1 (METHOD 3).
    for sequence, advantage in ((root, 1), (child, 1), (lost_root, -1), (lost_child, -1)):
        assert set(sequence.advantages[sequence.mask]) == {advantage}
    assert root.mask.tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert (root.depth, child.depth) == (0, 1)


def test_sera_rewards_children_by_their_rubric(config):
    graded = dict(rubric=RUBRIC, score=Score(1, (1.0, 0.0)))
    groups = [[tree(1.0, **graded), tree(0.0, rubric=RUBRIC, score=None)]]
    found = sequences("execution", groups, config, decode)
    # s = 0.5 minus R of the other tree = 0; the child without a score is left out.
    assert [s.advantages[-1] for s in found] == [1.0, 0.5, -1.0]


def test_decomposition_trains_the_delegation_block_and_nothing_else(config):
    groups = [[tree(1.0), tree(0.0)]]
    won, lost = sequences("decomposition", groups, config, decode)
    assert won.mask.tolist() == lost.mask.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    # rho = R * 1 leaf of 1 = 1 and 0; minus the other tree's mean rho (METHOD 2 and 3).
    assert (won.advantages[3], lost.advantages[3]) == (1.0, -1.0)
    assert won.behavior_logprobs[3] == np.float32(-0.9) and won.depth == 0


def attempts(*outcomes_and_scores):
    return tuple(
        Attempt(i, "finished", "m", outcome, Score(1, (score, score)))
        for i, (outcome, score) in enumerate(outcomes_and_scores)
    )


def forked(*outcomes_and_scores, ids=(5, 6)):
    call = Call(tokens=(0, *ids), start=1, logprobs=(-1.0,) * len(ids))
    return tree(1.0, rubric=RUBRIC, rubric_call=call, attempts=attempts(*outcomes_and_scores))


def test_rubric_steps_train_the_completion_by_how_it_ranks(config):
    good, bad = forked((True, 1.0), (False, 0.0)), forked((True, 0.0), (False, 1.0))
    unmixed = forked((True, 1.0), (True, 0.5))
    first, second = sequences("rubric", [[good, unmixed], [bad]], config, decode)
    # r = 0 and -(0.2 + 1); each minus the other, over the batch (METHOD 2 and 3).
    assert first.advantages[1] == pytest.approx(1.2) and second.advantages[1] == pytest.approx(-1.2)
    assert first.mask.tolist() == [False, True, True] and first.depth == 1


def test_one_usable_event_trains_nothing(config):
    assert not sequences("rubric", [[forked((True, 1.0), (False, 0.0))]], config, decode)


def test_the_task_baseline_compares_within_one_task():
    config = textworld.get_config("small,sera,task_baseline")
    pair = [forked((True, 1.0), (False, 0.0)), forked((True, 0.0), (False, 1.0))]
    other = Tree("other", 1.0, pair[0].nodes)
    credited = credit.credit("rubric", [pair, [other]], config, decode)
    assert len(credited.sequences) == 2
    # The other task's event has a reward and nobody to be compared with.
    assert [set(a) for a in credited.advantages] == [{"0.0"}, {"0.0"}, set()]
    assert credited.rewards[2] == {"0.0": 0.0}


def test_a_step_asks_for_what_method_5s_table_says():
    table = {
        ("sera", "execution"): (True, False, 1),
        ("rao", "execution"): (False, True, 1),
        ("sera", "decomposition"): (False, False, 1),
        ("sera", "rubric"): (True, True, 8),
        ("single_cispo", "execution"): (False, False, 1),
    }
    for (variant, objective), expected in table.items():
        asked = credit.sampling(objective, textworld.get_config(f"small,{variant}"))
        assert (asked.rubrics, asked.judged, asked.attempts) == expected


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_every_variant_is_a_config(name):
    config = textworld.get_config(f"small,{name}")
    assert config.variants == name
    assert config.rollout.delegation == (not name.startswith("single"))


def test_an_unknown_variant_is_named():
    with pytest.raises(ValueError, match="no variant 'serra'"):
        textworld.get_config("small,serra")
