"""What an agent reads: templates filled from the world, and their exact token ids.

A history is never rendered again. The opening is rendered once through the tokenizer's own chat
template; every later turn contributes only the ids of its own new segment, so that a node's tokens
are always (previous ids + generated ids + new segment) as the server saw them.

A template set is a folder of six Jinja files: `system`, `opening`, `observation` and `notice` for
an agent at work, `rubric` and `score` for grading one. `full` speaks to an instruction model,
`compact` spends few tokens for the small model; both ask for the same protocol.
"""

import functools
import pathlib
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jinja2

from sera_jax.rollout.protocol import parse
from sera_jax.trees import Node, Rubric
from sera_jax.worlds.base import StepResult, Task, World

TEMPLATES = pathlib.Path(__file__).parent / "templates"
# Closing tags of the protocol: a tokenizer that has them as single tokens can stop right there.
CLOSERS = ("</action>", "</finish>", "</delegate>", '"}</delegate>', '"}]}</delegate>')
_MARK = "\u2402"  # stands for content while the chat template's own text is read off


class Prompts:
    """Turns situations into token ids for one benchmark, style and tokenizer.

    `tokenizer` is a transformers tokenizer with a chat template.
    """

    def __init__(self, tokenizer, benchmark: str, style: str):
        folder = TEMPLATES / benchmark / style
        if not folder.is_dir():
            known = sorted(str(p.relative_to(TEMPLATES)) for p in TEMPLATES.glob("*/*"))
            raise ValueError(f"no prompt templates at {folder}; there are {', '.join(known)}")
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates = {p.stem: environment.get_template(p.name) for p in folder.glob("*.jinja")}
        self.tokenizer = tokenizer
        self._encode, self._decode = _fast_codec(tokenizer)
        specials = sorted(set(tokenizer.all_special_tokens), key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, specials)) or r"(?!)")
        self._turn = _next_turn_text(tokenizer)
        vocabulary = tokenizer.get_vocab()
        closers = [vocabulary[text] for text in CLOSERS if text in vocabulary]
        self.stop_ids = tuple(sorted({tokenizer.eos_token_id, *closers}))

    def opening(
        self,
        task: Task,
        goal: str | None,
        world: World,
        agent: str,
        *,
        depth: int,
        max_depth: int,
        max_steps: int,
        helper_steps: int,
        can_delegate: bool,
        context: str = "",
    ) -> list[int]:
        """Ids of a node's first prompt, generation prompt included. `goal` None: the root.

        `helper_steps` are what a child may take at most; `context` is what the parent said besides
        the goal.
        """
        values = dict(
            task=task,
            goal=goal,
            depth=depth,
            max_depth=max_depth,
            max_steps=max_steps,
            helper_steps=helper_steps,
            can_delegate=can_delegate,
            context=context,
            first=self.observation(world, agent, None),
        )
        return self._conversation(values, system="system", user="opening")

    def observation(self, world: World, agent: str, result: StepResult | None) -> str:
        """Text of what `agent` perceives after its command (None: before its first)."""
        return (
            self._templates["observation"]
            .render(world=world, agent=agent, state=world.state(agent), result=result)
            .strip()
        )

    def notice(self, kind: str, **values) -> str:
        """Text of what the loop, not the world, has to say (kinds: see the template)."""
        return self._templates["notice"].render(kind=kind, **values).strip()

    def next_turn(self, text: str, closed: bool) -> list[int]:
        """Ids between one response and the next: end of turn, the user's turn, generation prompt.

        `closed`: the response ended with a stop token of its own.
        """
        end, before, after = self._turn
        return self.encode(("" if closed else end) + before + self._clean(text) + after)

    def rubric(self, goal: str) -> str:
        """Text that asks an agent, in its own context, for a rubric of the goal it delegates."""
        return self._templates["rubric"].render(goal=goal).strip()

    def score(
        self, rubric: Rubric, node: Node, before: World, after: World, room: int
    ) -> list[int] | None:
        """Ids that ask, in a fresh context, for a score of a child's work.

        Where they exceed `room`, steps in the middle are left out, as few as possible, and the text
        says how many; None when even without any step there is too much.
        """
        shown = [
            SimpleNamespace(number=number, step=step, parsed=parse(step.text))
            for number, step in enumerate(node.steps, start=1)
        ]
        values = dict(
            rubric=rubric,
            node=node,
            goal=node.goal,
            before=self.observation(before, node.id, None),
            after=self.observation(after, node.id, None),
            state_before=before.state(node.id),
            state_after=after.state(node.id),
        )

        def render(kept: int) -> list[int] | None:
            first, last = (kept + 1) // 2, len(shown) - kept // 2
            steps = dict(first=shown[:first], left_out=last - first, last=shown[last:])
            ids = self._conversation(values | steps, user="score")
            return ids if len(ids) <= room else None

        return _most(render, len(shown))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without the special tokens that frame a turn."""
        return self._decode(list(ids), skip_special_tokens=True)

    def _conversation(self, values: dict[str, Any], **templates: str) -> list[int]:
        """Ids of the messages that templates give by role, empty ones left out."""
        contents = {
            role: self._clean(self._templates[name].render(values).strip())
            for role, name in templates.items()
        }
        messages = [{"role": role, "content": text} for role, text in contents.items() if text]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self.encode(text)

    def _clean(self, text: str) -> str:
        # Goals and messages are policy output: they must not open or close a turn. A blank, not
        # nothing, since deleting a marker could join its neighbors into another one.
        return self._specials.sub(" ", text)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as it stands, no special tokens added."""
        return self._encode(text)


def _fast_codec(tokenizer) -> tuple[Callable, Callable]:
    """encode(text) and decode(ids, skip_special_tokens) without special tokens added.

    What transformers wraps around a Rust tokenizer costs as much CPU as a request to a server:
    every text goes through a pool of threads as a batch of one.
    """
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return functools.partial(tokenizer.encode, add_special_tokens=False), tokenizer.decode
    rust.no_truncation()
    rust.no_padding()
    return lambda text: rust.encode(text, add_special_tokens=False).ids, rust.decode


def _most(render, count: int) -> list[int] | None:
    """render(n) for the largest n up to `count` for which it is not None, by bisection."""
    found = render(count)
    if found is not None:
        return found
    fits, too_many = -1, count
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        ids = render(middle)
        if ids is None:
            too_many = middle
        else:
            fits, found = middle, ids
    return found


def _next_turn_text(tokenizer) -> tuple[str, str, str]:
    """The chat template's text (ending an assistant turn, before, after) a user's next message."""
    one = [{"role": "user", "content": "1"}, {"role": "assistant", "content": _MARK}]
    two = [*one, {"role": "user", "content": _MARK}]
    text = tokenizer.apply_chat_template(two, tokenize=False, add_generation_prompt=True)
    parts = text.split(_MARK)
    if len(parts) != 3:
        raise ValueError("the tokenizer's chat template does not keep messages as they are")
    between, after = parts[1:]
    eos = tokenizer.eos_token
    end = eos if between.startswith(eos) else ""
    return end, between.removeprefix(end), after
