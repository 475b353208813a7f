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
class Call:
    """A single response outside any trajectory: the policy's rubric.

    `tokens` is prompt and response, the response from `start` on; the rest is as in `Step`. The
    `order` comes from the same count, so that the record shows what was known at the call.
    """

    tokens: tuple[int, ...]
    start: int
    logprobs: tuple[float, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    text: str = ""
    order: int = -1

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Call":
        fields = _known_fields(cls, obj)
        fields["tokens"] = tuple(fields.get("tokens", ()))
        fields["logprobs"] = tuple(fields.get("logprobs", ()))
        fields["versions"] = tuple((str(v), int(n)) for v, n in fields.get("versions", ()))
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One of several runs at a goal from the same cloned world (METHOD 5 and 8).

    `nodes` are the run's own node and all below it, parents first; empty for the committed
    attempt, whose nodes are the tree's.
    """

    index: int
    status: Status
    message: str | None = None
    verified: bool | None = None
    score: Score | None = None
    nodes: tuple["Node", ...] = ()

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Attempt":
        fields = _known_fields(cls, obj)
        fields["score"] = Score.from_json(obj["score"]) if obj.get("score") else None
        fields["nodes"] = tuple(Node.from_json(node) for node in obj.get("nodes") or ())
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Node:
    """One agent instance: one run of the policy on one goal.

    `tokens` is the whole trajectory exactly as the server saw and returned it. `verified` is the
    outcome y, None where nobody asked or nobody could tell. `rubric_problem` and `score_problem`
    say why there is no rubric or score although one was asked for. A goal that was tried several
    times has all its `attempts` in the committed one's record, with the reason for the choice.
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
    rubric_call: Call | None = None
    rubric_problem: str = ""
    score_problem: str = ""
    attempts: tuple[Attempt, ...] = ()
    committed: int = 0
    choice: str = ""

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
        fields["rubric_call"] = (
            Call.from_json(obj["rubric_call"]) if obj.get("rubric_call") else None
        )
        fields["attempts"] = tuple(Attempt.from_json(a) for a in obj.get("attempts") or ())
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
        return walk(self.by_id(), node_id if node_id is not None else self.root.id)

    def forked(self) -> Iterator[Node]:
        """Nodes with several attempts, also those below attempts that were not committed."""
        pending = list(reversed(tuple(self.walk())))
        while pending:
            node = pending.pop()
            if node.attempts:
                yield node
            pending.extend(n for a in reversed(node.attempts) for n in reversed(a.nodes))

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


def walk(nodes: dict[str, Node], root: str) -> Iterator[Node]:
    """`root` and all below it among `nodes`, parents first, in launch order."""
    pending = [nodes[root]]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(nodes[c] for s in reversed(node.steps) for c in reversed(s.children))


def event_id(node_id: str, step: int) -> str:
    """Name of the delegation at `step` (from 0) of a node: "0#3"."""
    return f"{node_id}#{step}"


def _known_fields(cls: type, obj: dict[str, Any]) -> dict[str, Any]:
    """Entries of `obj` that `cls` has and that are set; unknown keys are other tools' business."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {key: value for key, value in obj.items() if key in names and value is not None}
