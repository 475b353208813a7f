"""What plays the agents of a demonstration, and how the protocol's blocks are spelled in it.

A benchmark's `demonstrations.Script` stands in for the policy: it looks at the world in place of
the tokens and writes what a competent but careless agent would. The mistakes are what training is
left to remove.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from sera_jax.rollout.situation import Situation


class Script(Protocol):
    """Writes for all agents of one tree; made as `Script(task, rng)`."""

    def act(self, situation: Situation) -> str:
        """An agent's response: exactly one block, as spelled below."""

    def rubric(self, situation: Situation) -> str:
        """A rubric for the goal (rollout/rubric_text.py: `spell_rubric`)."""

    def score(self, situation: Situation) -> str:
        """Scores of `situation.node` by `situation.rubric` (`spell_score`)."""


def action(command: str) -> str:
    return f"<action>{command}</action>"


def finish(message: str) -> str:
    return f"<finish>{message}</finish>"


def delegate(goals: Sequence[str]) -> str:
    spelled = [f'{{"goal": {json.dumps(goal)}}}' for goal in goals]
    if len(spelled) == 1:
        return f"<delegate>{spelled[0]}</delegate>"
    return f'<delegate>{{"delegations": [{", ".join(spelled)}]}}</delegate>'


# The fixed strings of what is spelled above: a tokenizer that has them as single tokens writes an
# action in about four, and can stop at a closing one.
BLOCKS = (
    "<action>",
    "</action>",
    "<finish>",
    "</finish>",
    '<delegate>{"goal": "',
    '"}</delegate>',
    '<delegate>{"delegations": [{"goal": "',
    '"}, {"goal": "',
    '"}]}</delegate>',
)
