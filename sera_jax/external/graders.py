"""An external model as judge of delegated goals.

Prompts are the templates of `rollout/templates/BENCHMARK/external`; like everything that a node
reads, they are rendered in the call itself, before the world moves on.
"""

import dataclasses
import json
import re
from collections.abc import Awaitable
from typing import Any

import jinja2

from sera_jax.external.chat import ChatClient
from sera_jax.rollout.prompts import TEMPLATES
from sera_jax.supervision import Counters, Verdict
from sera_jax.worlds.base import World

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

    def judge(self, world: World, goal: str, agent: str) -> str:
        state = world.state(agent)
        return self._render("judge", task=world.task, world=world, goal=goal, state=state)

    def _render(self, name: str, **values: Any) -> str:
        return self._environment.get_template(f"{name}.jinja").render(values).strip()


@dataclasses.dataclass(frozen=True)
class ExternalJudge:
    """A judge in the sense of rollout/tree.py; counts its calls under `purpose`."""

    client: ChatClient
    questions: Questions
    counters: Counters
    purpose: str = "child"

    def __call__(self, world: World, goal: str, agent: str) -> Awaitable[Verdict]:
        # Not a coroutine function: siblings change the world before one would first run.
        return self._verdict(self.questions.judge(world, goal, agent))

    async def _verdict(self, question: str) -> Verdict:
        answer = await self.client.ask(
            question,
            read=parse_verdict,
            counters=self.counters,
            purpose=self.purpose,
            temperature=0.0,
            max_tokens=32,
        )
        return answer.value


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
