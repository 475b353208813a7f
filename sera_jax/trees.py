"""Records of one rollout: a tree of nodes, each a run of the policy on one goal (METHOD 1).

Plain frozen data with a JSON round trip; no logic but walks. Everything downstream (rewards,
advantages, batches, reports) is a function of these records alone.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

StepKind = Literal["action", "delegate", "finish", "invalid"]
# "done": the world ended (success or budget) before the node did.
Status = Literal["finished", "done", "out_of_steps", "out_of_context", "error"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One policy response and what the environment answered.

    `start` and `end` delimit the generated tokens inside `Node.tokens`; `logprobs` holds their
    behavior log-probs as the server returned them, `versions` runs of (weight version, count).
    `order` counts steps over the whole tree, in the order in which they were carried out.
    """

    kind: StepKind
    text: str
    children: tuple[str, ...] = ()
    observation: str = ""
    start: int = 0
    end: int = 0
    logprobs: tuple[float, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    order: int = -1

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Step":
        fields = _known_fields(cls, obj)
        fields["children"] = tuple(fields.get("children", ()))
        fields["logprobs"] = tuple(fields.get("logprobs", ()))
        fields["versions"] = tuple((str(v), int(n)) for v, n in fields.get("versions", ()))
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Criterion:
    name: str
    description: str
    weight: float


@dataclasses.dataclass(frozen=True)
class Rubric:
    """Written by the parent's policy before the child runs, then frozen (METHOD 1)."""

    criteria: tuple[Criterion, ...]
    text: str = ""

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Rubric":
        criteria = tuple(Criterion(**_known_fields(Criterion, c)) for c in obj.get("criteria", ()))
        return cls(criteria=criteria, text=obj.get("text", ""))


@dataclasses.dataclass(frozen=True)
class Score:
    """One scoring call's answer: completion gate, criterion scores in [0, 1], its stated total."""

    gate: int
    criteria: tuple[float, ...]
    stated: float | None = None

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Score":
        return cls(obj["gate"], tuple(obj.get("criteria", ())), obj.get("stated"))


@dataclasses.dataclass(frozen=True)
class Node:
    """One agent instance: one run of the policy on one goal.

    `tokens` is the whole trajectory exactly as the server saw and returned it. `verified` is the
    outcome y, None where nobody asked or nobody could tell.
    """

    id: str
    parent: str | None
    depth: int
    goal: str
    status: Status
    message: str | None = None
    verified: bool | None = None
    rubric: Rubric | None = None
    score: Score | None = None
    steps: tuple[Step, ...] = ()
    tokens: tuple[int, ...] = ()
    error: str | None = None

    @property
    def is_leaf(self) -> bool:
        return not any(step.children for step in self.steps)

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Node":
        fields = _known_fields(cls, obj)
        fields["rubric"] = Rubric.from_json(obj["rubric"]) if obj.get("rubric") else None
        fields["score"] = Score.from_json(obj["score"]) if obj.get("score") else None
        fields["steps"] = tuple(Step.from_json(step) for step in obj.get("steps", ()))
        fields["tokens"] = tuple(fields.get("tokens", ()))
        fields.setdefault("parent", None)
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Tree:
    """All nodes of one rollout of one task; `reward` is R, the world's verdict on the root.

    `info` holds what only reports need: tier, family, optimizer step, world actions spent.
    """

    task_id: str
    reward: float
    nodes: tuple[Node, ...]
    info: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def root(self) -> Node:
        return next(node for node in self.nodes if node.parent is None)

    def by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    def children(self, node_id: str) -> tuple[Node, ...]:
        """Direct children, in launch order."""
        nodes = self.by_id()
        return tuple(nodes[child] for step in nodes[node_id].steps for child in step.children)

    def leaves(self, node_id: str | None = None) -> tuple[Node, ...]:
        """Nodes without children in the subtree of `node_id` (default: the whole tree)."""
        return tuple(n for n in self.walk(node_id) if n.is_leaf)

    def walk(self, node_id: str | None = None) -> Iterator[Node]:
        """The subtree of `node_id` (default: the whole tree), parents first, in launch order."""
        nodes = self.by_id()
        pending = [nodes[node_id] if node_id is not None else self.root]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(nodes[c] for s in reversed(node.steps) for c in reversed(s.children))

    def events(self) -> Iterator[tuple[str, Node, Step]]:
        """Delegation events as (event id, delegating node, step); failed ones included."""
        for node in self.walk():
            for index, step in enumerate(node.steps):
                if step.kind == "delegate":
                    yield event_id(node.id, index), node, step

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Tree":
        nodes = tuple(Node.from_json(node) for node in obj["nodes"])
        return cls(obj["task_id"], float(obj["reward"]), nodes, dict(obj.get("info") or {}))


def event_id(node_id: str, step: int) -> str:
    """Name of the delegation at `step` (from 0) of a node: "0#3"."""
    return f"{node_id}#{step}"


def _known_fields(cls: type, obj: dict[str, Any]) -> dict[str, Any]:
    """Entries of `obj` that `cls` has and that are set; unknown keys are other tools' business."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {key: value for key, value in obj.items() if key in names and value is not None}
