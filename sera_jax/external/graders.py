"""An external model as judge of delegated goals, as writer of rubrics and as scorer.

Prompts are the templates of `rollout/templates/BENCHMARK/external`. A question is put together in
the call itself: the agents that share the world act on while its answer is awaited.
"""

import dataclasses
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import jinja2

from sera_jax.external.chat import ChatClient
from sera_jax.rollout.prompts import TEMPLATES
from sera_jax.rollout.rubric_text import read_rubric, read_score
from sera_jax.rollout.rubrics import RubricRequest, ScoreRequest
from sera_jax.supervision import Counters, Verdict
from sera_jax.trees import Rubric, Score
from sera_jax.worlds.base import World

VERDICT_TOKENS = 32
GRADING_TOKENS = 1024  # of a rubric or a score (METHOD 7)
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)```", re.DOTALL)


class Questions:
    """What an external model is asked about one benchmark, as text."""

    def __init__(self, benchmark: str):
        folder = TEMPLATES / benchmark / "external"
        if not folder.is_dir():
            known = sorted(path.parent.name for path in TEMPLATES.glob("*/external"))
            raise ValueError(f"no templates at {folder}; external models know {', '.join(known)}")
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["quoted"] = _quoted

    def judge(self, world: World, goal: str, agent: str) -> str:
        return self._render("judge", task=world.task, goal=goal, state=world.state(agent))

    def rubric(self, request: RubricRequest, context: str) -> str:
        state = request.world.state(request.agent)
        return self._render(
            "rubric", task=request.task, goal=request.goal, state=state, context=context
        )

    def score(self, request: ScoreRequest) -> str:
        node = request.node
        # The parent is in both worlds; the facts asked for are the same to every agent.
        return self._render(
            "score",
            task=request.task,
            rubric=request.rubric,
            goal=node.goal,
            steps=node.steps,
            status=node.status,
            message=node.message,
            before=request.before.state(node.parent),
            after=request.after.state(node.parent),
        )

    def _render(self, name: str, **values: Any) -> str:
        text = self._environment.get_template(f"{name}.jinja").render(values).strip()
        return text.encode(errors="replace").decode()  # half a surrogate pair is no valid request


def _quoted(text: str) -> str:
    """What the policy wrote, kept from passing for a part of the question."""
    return json.dumps(text, ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class ExternalJudge:
    """A judge in the sense of rollout/situation.py; counts its calls under `purpose`."""

    client: ChatClient
    questions: Questions
    counters: Counters
    purpose: str = "child"

    def __call__(self, world: World, goal: str, agent: str) -> Awaitable[Verdict]:
        return self._verdict(self.questions.judge(world, goal, agent))

    async def _verdict(self, question: str) -> Verdict:
        answer = await self.client.ask(
            question,
            read=parse_verdict,
            counters=self.counters,
            purpose=self.purpose,
            temperature=0.0,
            max_tokens=VERDICT_TOKENS,
        )
        return answer.value


@dataclasses.dataclass(frozen=True)
class ExternalWriter:
    """`Graders.write` of rollout/rubrics.py; `decode` makes text of the parent's tokens."""

    client: ChatClient
    questions: Questions
    counters: Counters
    decode: Callable[[Sequence[int]], str]
    temperature: float = 1.0
    purpose: str = "rubric"

    def __call__(self, request: RubricRequest) -> Awaitable[tuple[Rubric | None, None, str]]:
        question = self.questions.rubric(request, self.decode(request.tokens))
        return self._rubric(question, request.seed)

    async def _rubric(self, question: str, seed: int) -> tuple[Rubric | None, None, str]:
        answer = await self.client.ask(
            question,
            read=read_rubric,
            counters=self.counters,
            purpose=self.purpose,
            temperature=self.temperature,
            max_tokens=GRADING_TOKENS,
            # Part of the cache's key: other samples are other rubrics, a resumed run's are kept.
            seed=seed if self.temperature else None,
        )
        return answer.value, None, answer.reason


@dataclasses.dataclass(frozen=True)
class ExternalScorer:
    """`Graders.score` of rollout/rubrics.py."""

    client: ChatClient
    questions: Questions
    counters: Counters
    purpose: str = "score"

    def __call__(self, request: ScoreRequest) -> Awaitable[tuple[Score | None, str]]:
        return self._score(self.questions.score(request), len(request.rubric.criteria))

    async def _score(self, question: str, criteria: int) -> tuple[Score | None, str]:
        answer = await self.client.ask(
            question,
            read=lambda text: read_score(text, criteria),
            counters=self.counters,
            purpose=self.purpose,
            temperature=0.0,
            max_tokens=GRADING_TOKENS,
        )
        return answer.value, answer.reason


def parse_verdict(text: str) -> tuple[Verdict, str]:
    """Exactly {"success": true} or {"success": false}, a code fence around it at most."""
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        pairs = json.loads(fenced[1] if fenced else text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None, "the verdict is not JSON"
    for verdict in (True, False):
        if pairs == (("success", verdict),) and pairs[0][1] is verdict:
            return verdict, ""
    return None, 'the verdict is not {"success": true} or {"success": false}'
