"""Small stand-ins: prompts with one token per character, a counting world, scripted answers."""

import asyncio
import dataclasses
from types import SimpleNamespace

from sera_jax.rollout import tree
from sera_jax.rollout.rubrics import policy_graders
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.serving.answers import Generation
from sera_jax.worlds.base import StepResult

STOP = 3  # the id that ends a turn
RUBRIC = '{"criteria": [{"name": "half", "weight": 3}, {"name": "all", "weight": 1}]}'
SCORE = '{"gate": 1, "criteria": [1, 0.5]}'  # by RUBRIC: 0.875
TASK = SimpleNamespace(task_id="count-to-five")


class CharacterPrompts:
    """Every character is its own token, so that texts and ids can be compared at sight."""

    stop_ids = (STOP,)

    def opening(self, task, goal, world, agent, *, max_steps, context, **limits):
        assert limits["depth"] <= limits["max_depth"] and limits["can_delegate"] in (True, False)
        return encode(f"[{goal}|{agent}|{max_steps}]{context}")

    def observation(self, world, agent, result):
        return result.observation if result else ""

    def notice(self, kind, **values):
        return f"{kind}:" + "".join(str(value) for value in values.values())

    def next_turn(self, text, closed):
        return encode(("" if closed else "$") + f"<{text}>")

    def rubric(self, goal):
        return f"rubric:{goal}"

    def score(self, rubric, node, before, after, room):
        text = f"{node.goal}|{before.count}->{after.count}|{len(rubric.criteria)}"
        return encode(text) if len(text) <= room else None

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i != STOP)


def encode(text):
    return [ord(c) for c in text]


@dataclasses.dataclass
class CountingWorld:
    """Succeeds at `target` "up" commands, is over after `budget` commands; logs who did what."""

    target: int = 5
    budget: int = 100
    count: int = 0
    log: list = dataclasses.field(default_factory=list)
    agents: list = dataclasses.field(default_factory=list)
    places: dict = dataclasses.field(default_factory=dict)  # agent -> whom it joined beside
    goals: dict = dataclasses.field(default_factory=dict)  # agent -> its goal

    @property
    def success(self):
        return self.count >= self.target

    @property
    def done(self):
        return self.success or len(self.log) >= self.budget

    def join(self, agent, room="kitchen", beside=None, goal=None):
        self.agents.append(agent)
        self.places[agent] = beside
        self.goals[agent] = goal

    def refuse_goal(self, goal):
        return "count up or down" if goal == "dance" else ""

    def copy(self):
        own = {"log": [*self.log], "agents": [*self.agents], "places": {**self.places}}
        own["goals"] = {**self.goals}
        return dataclasses.replace(self, **own)

    def lookup(self, agent, command):
        return f"count {self.count}" if command == "inventory" else None

    def step(self, agent, command):
        assert agent in self.agents and not self.done
        self.log.append((agent, command))
        accepted = command == "up"
        self.count += accepted
        return StepResult(accepted, float(self.success), self.done, f"now {self.count}")


def generation(text, *, finish_reason="stop", stop=True, version="w0"):
    ids = (*encode(text), *([STOP] if stop else []))
    logprobs = tuple(-0.01 * (i + 1) for i in range(len(ids)))
    return Generation(ids, logprobs, finish_reason, ((version, len(ids)),))


def scripted(answers, seen=None):
    """Answers by node id: a list of texts, Generations or exceptions; then finishes.

    Rubrics are answered by "rubric GOAL", scores by "score NODE"; then by RUBRIC and SCORE.
    """
    usual = {"act": "<finish>over</finish>", "rubric": RUBRIC, "score": SCORE}
    queues = {node: list(texts) for node, texts in answers.items()}

    async def respond(situation):
        if seen is not None:
            seen.append(situation)
        await asyncio.sleep(0)
        names = {"act": situation.agent, "rubric": f"rubric {situation.goal}"}
        queue = queues.get(names.get(situation.kind, f"score {situation.agent}"))
        answer = queue.pop(0) if queue else usual[situation.kind]
        if isinstance(answer, Exception):
            raise answer
        return generation(answer) if isinstance(answer, str) else answer

    return respond


def play(answers, *, world=None, judge=None, seen=None, graded=False, **limits):
    """`graded`: by the policy, or by the graders given."""
    config = RolloutConfig(**{"context_length": 10_000, "max_new_tokens": 1_000, **limits})
    world = world or CountingWorld()
    respond = scripted(answers, seen) if isinstance(answers, dict) else answers
    prompts = CharacterPrompts()
    graders = policy_graders(respond, prompts, config) if graded is True else graded or None
    kept = dict(tree_id="t1", seed=7, info={"tier": "easy"}, graders=graders)
    playing = tree.rollout(TASK, world, respond, prompts, judge, config, **kept)
    return asyncio.run(playing)
