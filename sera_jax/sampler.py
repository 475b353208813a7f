"""Trees from the policy servers: who acts, who writes and scores rubrics, who judges.

What a tree is asked about is the caller's (`credit.Sampling`); who answers is the config's. The
trainer and the evaluation share this, so that both play by the same rules.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from sera_jax import supervision
from sera_jax.credit import Sampling
from sera_jax.external.answers import ungrouped
from sera_jax.external.chat import ChatClient, Endpoint
from sera_jax.external.graders import ExternalJudge, ExternalScorer, ExternalWriter, Questions
from sera_jax.rollout import rubrics
from sera_jax.rollout.node import policy_responder
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.rollout.tree import RolloutError, rollout
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.errors import ServersLost
from sera_jax.trees import Criterion, Rubric, Tree


@dataclasses.dataclass
class Sampler:
    """Async context manager that holds the connections.

    `evaluator` is the client of the model that scores rubrics, where that is not the policy:
    a frozen copy (METHOD 9).
    """

    config: Any
    worlds: ModuleType  # the benchmark's package under sera_jax.worlds
    prompts: Prompts
    client: PolicyClient
    evaluator: PolicyClient | None = None
    counters: supervision.Counters = dataclasses.field(default_factory=supervision.Counters)
    chat: ChatClient | None = None

    async def __aenter__(self) -> "Sampler":
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.client)
            if self.evaluator:
                await stack.enter_async_context(self.evaluator)
            if needs_external(self.config):
                self.chat = ChatClient(Endpoint(**self.config.external))
                await stack.enter_async_context(self.chat)
                await self.chat.check()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error) -> None:
        await self._stack.__aexit__(*error)

    async def groups(self, tasks: Sequence, step: int, asked: Sampling) -> list[list[Tree]]:
        """K trees of each task, all at once; a tree whose request failed is left out.

        ServersLost when no policy server is there any more.
        """
        size = self.config.train.trees

        async def one(task, number: int) -> Tree | None:
            try:
                return await self.tree(task, f"{step}/{task.task_id}/{number}", asked, step=step)
            except RolloutError as error:
                if lost := _servers_lost(error):
                    raise lost from None
                print(f"tree left out: {error}", flush=True)
                return None

        trees = await asyncio.gather(*(one(task, k) for task in tasks for k in range(size)))
        groups = [trees[i * size : (i + 1) * size] for i in range(len(tasks))]
        return [[tree for tree in group if tree is not None] for group in groups]

    async def tree(
        self, task, tree_id: str, asked: Sampling, *, step: int = 0, **limits: Any
    ) -> Tree:
        """One tree of `task` by the present policy; `limits` replace those of the config."""
        config = self.config
        limits = RolloutConfig(
            **{
                **config.rollout,
                "attempts": asked.attempts,
                "fork_budget": config.rubrics.fork_budget,
                **limits,
            }
        )
        respond = self._responder(self.client)
        with ungrouped():
            return await rollout(
                task,
                self.worlds.World(task),
                respond,
                self.prompts,
                self._judge(tree_id, asked) if asked.judged else None,
                limits,
                tree_id=tree_id,
                seed=config.seed,
                info={"tier": task.tier, "family": task.family, "optimizer_step": step},
                graders=self._graders(respond, limits) if asked.rubrics else None,
            )

    def _responder(self, client: PolicyClient):
        return policy_responder(client, stop_token_ids=self.prompts.stop_ids)

    def _judge(self, tree_id: str, asked: Sampling) -> Callable:
        purpose = "child" if asked.attempts == 1 else "attempt"
        if self.config.judge == "external":
            judge = ExternalJudge(self.chat, self._questions, self.counters, purpose)
        else:
            verifiers = dict(self.worlds.VERIFIERS)
            chosen = verifiers.pop(self.config.judge)
            others = tuple(verifiers.values())
            judge = supervision.Judge(chosen, self.counters, purpose, others)
        return supervision.noisy(judge, self.config.judge_noise, self.config.seed, tree_id)

    def _graders(self, respond, limits: RolloutConfig) -> rubrics.Graders:
        settings = self.config.rubrics
        policy = rubrics.policy_graders(respond, self.prompts, limits)
        write, score = policy.write, policy.score
        if settings.weights == "frozen":
            evaluator = self._responder(self.evaluator)
            score = rubrics.policy_graders(evaluator, self.prompts, limits).score
        if settings.writer == "global":
            write = rubrics.global_rubric(global_rubric(settings.global_criteria))
        elif settings.writer == "external":
            decode = self.prompts.decode
            write = ExternalWriter(
                self.chat, self._questions, self.counters, decode, limits.rubric_temperature
            )
        if settings.scorer == "external":
            score = ExternalScorer(self.chat, self._questions, self.counters)
        return rubrics.Graders(write, score)

    @functools.cached_property
    def _questions(self) -> Questions:
        return Questions(self.config.benchmark)


def _servers_lost(error: BaseException | None) -> ServersLost | None:
    """What a chain of causes ends in, if it is that."""
    while error is not None and not isinstance(error, ServersLost):
        error = error.__cause__
    return error


def needs_external(config) -> bool:
    return "external" in (config.judge, config.rubrics.writer, config.rubrics.scorer)


def global_rubric(criteria: Sequence[tuple[str, float]]) -> Rubric:
    """One rubric for all goals, of (what to look at, weight)."""
    total = sum(weight for _, weight in criteria)
    return Rubric(tuple(Criterion(name, "", weight / total) for name, weight in criteria))
