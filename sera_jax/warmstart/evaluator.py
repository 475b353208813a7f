"""What the demonstrations write as rubrics and score by them: uneven on purpose.

A good rubric looks at what the goal is about, a weak one at the work and not at its end, a bad one
at what has nothing to do with it. Each tells successes from failures less well than the one before,
so that training on how rubrics rank attempts has something to improve.
"""

import random
from collections.abc import Callable, Sequence

from sera_jax.rollout.rubric_text import spell_rubric, spell_score
from sera_jax.trees import Node, Rubric

GOOD, WEAK = 0.35, 0.35  # shares of rubrics; the rest is bad
MISJUDGED = 0.05  # of criterion scores
FEW_STEPS = 12
SAYS_DONE, FEW, NEVER_REFUSED = "says done", "few steps", "never refused"


def rubric(ends: Sequence[str], work: Sequence[str], beside: str, rng: random.Random) -> str:
    """A rubric from criteria about the goal's `ends` and about the `work` towards them.

    At least one of the two has entries. `beside` is a criterion that is beside the point.
    """
    level = rng.random()
    if level < GOOD:
        criteria = [(name, 6) for name in ends or work] + [(name, 1) for name in work if ends]
    elif level < GOOD + WEAK:
        criteria = [(name, 2) for name in work] + [(SAYS_DONE, 2)]
    else:
        criteria = [(SAYS_DONE, 3), (beside, rng.randint(1, 3)), (FEW, rng.randint(1, 3))]
        criteria += [(name, 1) for name in work[:1]]
    for name in (FEW, NEVER_REFUSED, beside):  # four are asked for
        if len(criteria) < 4 and name not in dict(criteria):
            criteria.append((name, 1))
    return spell_rubric(criteria[:8])


def score(
    rubric: Rubric, node: Node, gate: bool, holds: Callable[[str], bool], rng: random.Random
) -> str:
    """Scores of a child, with a mistake now and then.

    `holds` tells of a criterion that is not said above whether the world shows it.
    """
    scores = [_holds(criterion.name, node, holds) for criterion in rubric.criteria]
    scores = [not true if rng.random() < MISJUDGED else true for true in scores]
    return spell_score(int(gate), [float(true) for true in scores])


def _holds(name: str, node: Node, holds: Callable[[str], bool]) -> bool:
    if name == SAYS_DONE:
        return bool(node.message) and "not" not in node.message
    if name == FEW:
        return len(node.steps) <= FEW_STEPS
    if name == NEVER_REFUSED:
        return not any(step.observation.startswith("no ") for step in node.steps)
    return holds(name)
