"""The trees of one optimizer step, wherever they were sampled, and on their way to be trained."""

import base64
import dataclasses
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sera_jax import credit, hosts, schedule
from sera_jax.sampler import Sampler
from sera_jax.trees import Tree

Numbers = dict[str, Any]  # numbers by name, nested


@dataclasses.dataclass(frozen=True)
class Sampled:
    """`groups` holds the trees of each task.

    `supervision` and `client` are the counters of the whole run and of its clients at the moment
    these trees were done, so that what is sampled meanwhile does not show in them.
    """

    groups: list[list[Tree]]
    supervision: Numbers
    client: Numbers
    seconds: float

    @property
    def trees(self) -> list[Tree]:
        return [tree for group in self.groups for tree in group]

    def to_text(self) -> str:
        """Compressed; trees are mostly numbers of few digits that repeat."""
        groups = [[tree.to_json() for tree in group] for group in self.groups]
        data = json.dumps(dataclasses.asdict(dataclasses.replace(self, groups=groups)))
        return base64.b64encode(zlib.compress(data.encode(), 1)).decode()

    @classmethod
    def from_text(cls, text: str) -> "Sampled":
        fields = json.loads(zlib.decompress(base64.b64decode(text)))
        groups = [[Tree.from_json(tree) for tree in group] for group in fields.pop("groups")]
        return cls(groups=groups, **fields)


async def sample(sampler: Sampler, step: int) -> Sampled:
    """This process's share of optimizer step `step`, with the weights that the servers have."""
    config, start = sampler.config, time.monotonic()
    asked = credit.sampling(schedule.objective_at(step, config.cycle), config)
    tasks = sampler.worlds.training_tasks(config.tasks, config.seed, step, config.train.tasks)
    groups = await sampler.groups(hosts.share(tasks), step, asked)
    counters, client = sampler.counters.to_json(), dict(sampler.client.record())
    return Sampled(groups, counters, client, time.monotonic() - start)


def joined(shares: Sequence[Sampled]) -> Sampled:
    """The shares of all processes as one; as slow as the slowest of them."""
    return Sampled(
        groups=hosts.interleaved([share.groups for share in shares]),
        supervision=total([share.supervision for share in shares]),
        client=total([share.client for share in shares]),
        seconds=max(share.seconds for share in shares),
    )


def total(parts: Sequence[Numbers]) -> Numbers:
    """Sums, name by name."""
    sums: Numbers = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Mapping):
                sums[name] = total([sums.get(name, {}), value])
            else:
                sums[name] = sums.get(name, 0) + value
    return sums
