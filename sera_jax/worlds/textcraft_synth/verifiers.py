"""Outcomes of delegated goals. Both ask whether every target was crafted on top of what there was.

`delta` compares inventories, as the published code does. It is unsound while siblings are at work:
a child that did nothing passes with what a sibling made, and one that did its work fails when a
sibling used it up. `ledger` counts what the child and all below it made, less what these used. In a
forked attempt nobody else is at work, and both say the same.
"""

from collections import Counter

from sera_jax.worlds.textcraft_synth.goals import read_goal
from sera_jax.worlds.textcraft_synth.world import World


def delta(world: World, goal: str, agent: str) -> bool | None:
    """None where the goal names no target or `agent` never joined."""
    targets = read_goal(goal)
    if not targets or agent not in world.starts:
        return None
    return world.gained(world.starts[agent], targets)


def ledger(world: World, goal: str, agent: str) -> bool | None:
    """None where the goal names no target or `agent` never joined."""
    targets = read_goal(goal)
    if not targets or agent not in world.starts:
        return None
    balance = subtree_balance(world, agent)
    return all(balance[item] >= count for item, count in targets.items())


def subtree_balance(world: World, agent: str) -> Counter[str]:
    """Item -> made less used by `agent` and all agents below it, by their names."""
    balance = Counter()
    for made in world.log:
        if made.agent == agent or made.agent.startswith(f"{agent}."):
            balance[made.item] += made.count
            balance.subtract(made.used)
    return balance


VERIFIERS = {"delta": delta, "ledger": ledger}
