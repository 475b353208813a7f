"""Tokens trained per token computed, if beginnings that sequences share were computed once.

    python -m benchmarks.shared_prefixes RUN          # the saved trees of a run
    python -m benchmarks.shared_prefixes --oracle     # Qwen's BPE, `full` prompts, oracle play

By what each kind of step trains: whole nodes, delegating nodes, rubrics of forked goals. "all" is
what any layout could save, within a tree, within the trees of one task, and in the whole step;
"packed" is what prefixes.py does in rows of the paper's preset. Where it is below `PAYS` the plain
layout is used. `--oracle` plays the published test tasks, eight trees a task; a delegation's
rubrics stand for those of forked goals there, at most two a tree.
"""

import argparse
import collections
import itertools
from collections.abc import Callable, Sequence

from sera_jax import batching, prefixes, tree_writer
from sera_jax.trees import Tree

ROW = 16_384
FORKS = 2  # a tree, with the paper's budget of worlds
Step = list[list[Tree]]  # the trees of each task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="a run's folder")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--tasks", type=int, default=2, help="of every tier, with --oracle")
    flags = parser.parse_args()
    columns = ("sequences", "tokens", "tree", "task", "step", "packed")
    print(f"{'':24}" + "".join(f"{column:>11}" for column in columns))
    steps = played(flags.tasks) if flags.oracle else saved(flags.run)
    for (objective, name), found in steps.items():
        line(f"{objective} {name}", found, KINDS[objective])


def line(name: str, steps: list[Step], sequences: Callable) -> None:
    sets = {"tree": [], "task": [], "step": []}
    for step in steps:
        tasks = [[sequences(tree) for tree in task] for task in step]
        sets["tree"] += itertools.chain.from_iterable(tasks)
        sets["task"] += [sum(task, []) for task in tasks]
        sets["step"].append(sum(sets["task"][-len(tasks) :], []))
    whole = sum(sets["step"], [])
    if not whole:
        return
    tokens = sum(len(sequence.tokens) for sequence in whole)
    ratios = [tokens / sum(unique(some) for some in found) for found in sets.values()]
    groups = [
        group
        for some in sets["step"]
        if some
        for group in prefixes.grouped([prefixes.Group([s], [1.0]) for s in some], ROW)
    ]
    figures = "".join(f"{ratio:11.2f}" for ratio in (*ratios, prefixes.saving(groups)))
    print(f"{name:24}{len(whole):11}{tokens:11}{figures}")


def unique(sequences: Sequence[batching.Sequence]) -> int:
    """Nodes of the tree that the sequences' beginnings form."""
    found = set()
    for sequence in sequences:
        place = 0
        for token in sequence.tokens.tolist():
            found.add(place := hash((place, token)))
    return len(found)


def execution(tree: Tree) -> list[batching.Sequence]:
    return batching.from_trees([tree], [{node.id: 1.0 for node in tree.nodes}])


def decomposition(tree: Tree) -> list[batching.Sequence]:
    delegating = {event.split("#")[0] for event, _, _ in tree.events()}
    return batching.from_trees([tree], [dict.fromkeys(delegating, 1.0)])


def rubric(tree: Tree) -> list[batching.Sequence]:
    forked = list(tree.forked()) or [node for node in tree.nodes if node.rubric_call][:FORKS]
    calls = [(node.rubric_call, node.depth) for node in forked if node.rubric_call]
    return [batching.from_call(call, 1.0, depth) for call, depth in calls]


KINDS = {"execution": execution, "decomposition": decomposition, "rubric": rubric}


def saved(folder: str) -> dict[tuple[str, str], list[Step]]:
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in tree_writer.read_trees(folder):
        tree = Tree.from_json(record)
        found[record["objective"], record["step"]][tree.task_id].append(tree)
    steps = collections.defaultdict(list)
    for (objective, _), tasks in sorted(found.items()):
        steps[objective, "steps"].append(list(tasks.values()))
    return steps


def played(tasks: int) -> dict[tuple[str, str], list[Step]]:
    from benchmarks import prompt_lengths as lengths
    from sera_jax.rollout.prompts import Prompts
    from sera_jax.worlds import textworld_sync as tws
    from sera_jax.worlds.textworld_sync.demonstrations import Mistakes

    prompts, test = Prompts(lengths.Qwen(), "textworld_sync", "full"), tws.generate("test")
    steps = {}
    for tier in lengths.TIERS:
        chosen = [task for task in test if task.tier == tier][:tasks]
        step = [
            [
                lengths.play(task, prompts, Mistakes(), seed, collections.defaultdict(list))
                for seed in range(8)
            ]
            for task in chosen
        ]
        steps |= {(objective, tier): [step] for objective in KINDS}
    return dict(sorted(steps.items()))


if __name__ == "__main__":
    main()
