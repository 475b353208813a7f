"""Saved trees as the data of the viewer: a short row each for the list, a payload each to open.

Policy text goes through unchanged: the page writes it as text, never as markup.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from sera_jax import rewards
from sera_jax.rollout.protocol import parse
from sera_jax.trees import Node, event_id

Record = dict[str, Any]  # of tree_writer.read_trees
DIGITS = 6  # decimals of log-probs: their agreement is what one looks for


def row(record: Record, run: int) -> dict[str, Any]:
    """What the list shows of a tree and filters by."""
    nodes, info = record["nodes"], record.get("info") or {}
    values = list((record.get("advantages") or {}).values())
    return {
        "run": run,
        "step": record.get("step"),
        "objective": record.get("objective", ""),
        "task": record["task_id"],
        "family": str(info.get("family", "")),
        "tier": str(info.get("tier", "")),
        "reward": record["reward"],
        "nodes": len(nodes),
        "depth": max((node["depth"] for node in nodes), default=0),
        "forks": sum(bool(node.get("attempts")) for node in nodes),
        "tokens": sum(s.get("end", 0) - s.get("start", 0) for n in nodes for s in n["steps"]),
        "trained": any(values),
    }


def payload(record: Record, tokenizer: tokenizers.Tokenizer | None) -> dict[str, Any]:
    """Everything about one tree; its nodes are the record's with what was trained filled in."""
    page = _Page(record, tokenizer)
    nodes = [page.node(node) for node in record["nodes"]]
    return {
        "task": record["task_id"],
        "reward": record["reward"],
        "step": record.get("step"),
        "objective": record.get("objective", ""),
        "info": record.get("info") or {},
        "nodes": nodes,
        "vocabulary": page.vocabulary(),
    }


@dataclasses.dataclass
class _Page:
    record: Record
    tokenizer: tokenizers.Tokenizer | None
    ids: set[int] = dataclasses.field(default_factory=set)

    def vocabulary(self) -> dict[int, str]:
        """The text of every generated id, where there is a tokenizer to ask."""
        if self.tokenizer is None:
            return {}
        return {i: self.tokenizer.decode([i], skip_special_tokens=False) for i in sorted(self.ids)}

    def node(self, node: Record) -> dict[str, Any]:
        """A node of the tree or of an attempt that was not committed; ids tell them apart."""
        steps, at = [], 0
        for index, step in enumerate(node["steps"]):
            count = len(step.get("logprobs") or ())
            trainer = self._trainer(node, at, at + count)
            steps.append(self._step(node, index, step, trainer))
            at += count
        # A root, and a child nobody was asked to judge, fails by no rule of the evaluator's.
        asked = any(node.get(key) for key in ("rubric", "rubric_problem", "score"))
        bare = node | {"steps": [], "attempts": []}
        tokens = node.get("tokens") or ()
        prompt = tokens[: steps[0]["start"]] if steps else tokens
        return {
            **{key: node.get(key) for key in ("id", "parent", "depth", "goal", "status")},
            **{key: node.get(key) for key in ("message", "verified", "error")},
            "reward": self._value("rewards", node),
            "advantage": self._value("advantages", node),
            "prompt": self._decode(prompt),
            "prompt_tokens": len(prompt),
            "rubric": _rubric(node.get("rubric")),
            "rubric_call": self._rubric_call(node),
            "score": _score(node.get("score"), rewards.node_score(Node.from_json(bare)), asked),
            "problems": [p for p in (node.get("rubric_problem"), node.get("score_problem")) if p],
            "steps": steps,
            **self._group(node),
        }

    def _step(
        self, node: Record, index: int, step: Record, trainer: Sequence[float]
    ) -> dict[str, Any]:
        start, end = step.get("start", 0), step.get("end", 0)
        event = event_id(node["id"], index)
        return {
            "kind": step["kind"],
            "parts": self._parts(node, event, step),
            "children": step.get("children") or [],
            "observation": step.get("observation") or "",
            "order": step.get("order", -1),
            "versions": step.get("versions") or [],
            "start": start,
            "reward": self._lookup("rewards", event),
            "advantage": self._lookup("advantages", event),
            **self._tokens((node.get("tokens") or ())[start:end], step, trainer),
        }

    def _parts(self, node: Record, event: str, step: Record) -> list[str]:
        """[text], or [before, trained, after] where the objective trains some of it (METHOD 4)."""
        text, objective = step["text"], self.record.get("objective")
        if objective == "execution" and self._lookup("advantages", node["id"]) is not None:
            return ["", text, ""]
        if objective == "decomposition" and self._lookup("advantages", event) is not None:
            first, last = parse(text).span
            return [text[:first], text[first:last], text[last:]]
        return [text]

    def _tokens(
        self, ids: Sequence[int], call: Record, trainer: Sequence[float]
    ) -> dict[str, list[Any]]:
        self.ids.update(ids)
        logprobs = [_short(value) for value in call.get("logprobs") or ()]
        return {"ids": list(ids), "logprobs": logprobs, "trainer": [_short(v) for v in trainer]}

    def _rubric_call(self, node: Record) -> dict[str, Any] | None:
        call = node.get("rubric_call")
        if not call:
            return None
        text, start = call.get("text") or "", call.get("start", 0)
        trained = (
            self.record.get("objective") == "rubric"
            and self._lookup("advantages", node["id"]) is not None
        )
        return {
            "parts": ["", text, ""] if trained else [text],
            "order": call.get("order", -1),
            "versions": call.get("versions") or [],
            "prompt": self._decode((call.get("tokens") or ())[:start]),
            **self._tokens((call.get("tokens") or ())[start:], call, ()),
        }

    def _group(self, node: Record) -> dict[str, Any]:
        """The attempts at one goal, and how the scores rank them."""
        attempts = node.get("attempts") or ()
        if not attempts:
            return {"attempts": []}
        bare = [attempt | {"nodes": []} for attempt in attempts]
        scores = rewards.attempt_scores(Node.from_json(node | {"steps": [], "attempts": bare}))
        outcomes = [attempt.get("verified") for attempt in attempts]
        gaps, _ = rewards.success_failure_gaps(scores, outcomes)
        return {
            "attempts": [
                {
                    **{key: attempt.get(key) for key in ("index", "status", "message", "verified")},
                    "score": _score(attempt.get("score"), total, True),
                    "nodes": [self.node(inner) for inner in attempt.get("nodes") or ()],
                }
                for attempt, total in zip(attempts, scores, strict=True)
            ],
            "committed": node.get("committed", 0),
            "choice": node.get("choice") or "",
            "ranking": {
                "reward": rewards.ranking_reward(scores, outcomes),
                "pairs": gaps.size,
                "right": int((gaps > 0).sum()),
            },
        }

    def _trainer(self, node: Record, first: int, last: int) -> Sequence[float]:
        return ((self.record.get("trainer_logprobs") or {}).get(node["id"]) or ())[first:last]

    def _value(self, table: str, node: Record) -> float | None:
        """A node's own value; else, where events have them, that of the one that launched it."""
        own = self._lookup(table, node["id"])
        return own if own is not None else self._lookup(table, self._launched_by.get(node["id"]))

    @functools.cached_property
    def _launched_by(self) -> Mapping[str, str]:
        return {
            child: event_id(node["id"], index)
            for node in self.record["nodes"]
            for index, step in enumerate(node["steps"])
            for child in step.get("children") or ()
        }

    def _lookup(self, table: str, key: str | None) -> float | None:
        value = (self.record.get(table) or {}).get(key)
        return value if isinstance(value, int | float) else None

    def _decode(self, ids: Sequence[int]) -> str | None:
        if self.tokenizer is None:
            return None
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


def _rubric(rubric: Record | None) -> dict[str, Any] | None:
    """With the weights as the score uses them, or as written where they cannot be used."""
    if not rubric:
        return None
    criteria = [dict(criterion) for criterion in rubric.get("criteria") or ()]
    try:
        weights = rewards.normalised_weights([c["weight"] for c in criteria]).tolist()
    except (KeyError, TypeError, ValueError):
        weights = [None for _ in criteria]
    for criterion, weight in zip(criteria, weights, strict=True):
        criterion["share"] = weight
    return {"criteria": criteria, "text": rubric.get("text") or ""}


def _score(answer: Record | None, total: float | None, asked: bool) -> dict[str, Any]:
    """The scorer's answer on a child or an attempt, and the total s that the method makes of it."""
    shown = answer or {"gate": None, "criteria": [], "stated": None}
    return {**shown, "total": total if asked else None, "answered": bool(answer)}


def _short(value: Any) -> float | None:
    return round(value, DIGITS) if isinstance(value, float) else None
