"""One agent's loop: ask the policy, carry out the one block of its response, answer, repeat.

Tokens in, tokens out: the next input is the previous input, the ids the server returned, and the
ids of the new segment alone. Nothing that was said once is rendered or tokenized again.

How a node ends (`trees.Status`):

    finished        it sent a finish message, also when the world had ended meanwhile
    done            the world ended first; seen before the next request or when acting
    out_of_steps    `max_steps` responses, none of them a finish
    out_of_context  the next segment and one new token do not fit; the segment is left out, so
                    that a trajectory never exceeds the context and ends with a generated token
    error           the policy server failed (after the client's own retries), or another node's
                    request did and the tree is being given up; what the node has is kept
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sera_jax.rollout.protocol import Parsed, parse
from sera_jax.rollout.situation import Assignment, Delegation, Episode, Respond, Situation, ask
from sera_jax.trees import Node, Status, Step
from sera_jax.worlds.base import StepResult

if TYPE_CHECKING:  # the client is aiohttp; a scripted rollout needs none of it
    from sera_jax.serving.answers import Generation
    from sera_jax.serving.client import PolicyClient

ENDED = "The world had ended before this step was carried out."


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What carrying out one response led to; `status` is set when it ends the node."""

    observation: str = ""
    children: tuple[str, ...] = ()
    status: Status | None = None


def policy_responder(
    client: "PolicyClient", *, temperature: float | None = None, stop_token_ids: Sequence[int]
) -> Respond:
    """Answers with the policy server. Trees stick to one server for its prefix cache.

    `temperature` is that of acting agents in place of what the situation says.
    """

    async def respond(situation: Situation) -> "Generation":
        as_told = temperature is None or situation.kind != "act"
        return await client.generate(
            situation.input_ids,
            temperature=situation.temperature if as_told else temperature,
            max_new_tokens=situation.max_new_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=situation.seed,
            sticky=situation.tree_id,
        )

    return respond


async def run_node(assignment: Assignment, episode: Episode) -> Node:
    """Runs one agent to its end. The agent has joined the world already."""
    prompts, config = episode.prompts, episode.config
    tokens, segment = (), _opening(assignment, episode)
    steps: list[Step] = []

    def end(status: Status, **kept: Any) -> Node:
        who = (assignment.id, assignment.parent, assignment.depth, assignment.goal or "")
        return Node(*who, status, steps=tuple(steps), tokens=tokens, **kept)

    for index in range(assignment.max_steps):
        if episode.failures:
            return end("error", error=f"given up: the request of {episode.failures[0][0]} failed")
        if assignment.world.done:
            return end("done")
        room = config.context_length - len(tokens) - len(segment)
        if room < 1:
            return end("out_of_context")
        situation = _situation(assignment, episode, index, tokens + segment, room)
        try:
            generation = await ask(episode.respond, situation)
        except Exception as error:
            episode.failures.append((assignment.id, error))
            return end("error", error=f"request failed at step {index}: {error!r}")
        ids = tuple(generation.token_ids)
        tokens = situation.input_ids + ids
        closed = bool(ids) and ids[-1] in prompts.stop_ids
        text = prompts.decode(ids)
        parsed = _parse(text, generation)
        order = episode.next_order()  # before any child's steps
        delegation = Delegation(assignment, index, parsed.goals, _launched(steps), tokens, closed)
        outcome = await _carry_out(parsed, delegation, episode)
        steps.append(
            Step(
                kind=parsed.kind,
                text=text,
                children=outcome.children,
                observation=outcome.observation,
                start=len(situation.input_ids),
                end=len(tokens),
                logprobs=tuple(generation.logprobs),
                versions=tuple(generation.versions),
                order=order,
            )
        )
        if outcome.status:
            return end(outcome.status, message=parsed.message or None)
        segment = tuple(prompts.next_turn(outcome.observation, closed))
    return end("done" if assignment.world.done else "out_of_steps")


def _opening(assignment: Assignment, episode: Episode) -> tuple[int, ...]:
    ids = episode.prompts.opening(
        episode.task,
        assignment.goal,
        assignment.world,
        assignment.id,
        depth=assignment.depth,
        max_depth=episode.config.max_depth,
        max_steps=assignment.max_steps,
        helper_steps=episode.config.max_steps,
        can_delegate=episode.may_delegate(assignment.depth),
        context=assignment.context,
    )
    return tuple(ids)


def _situation(
    assignment: Assignment, episode: Episode, step: int, input_ids: tuple[int, ...], room: int
) -> Situation:
    config = episode.config
    can_delegate = (
        episode.may_delegate(assignment.depth)
        and episode.children_left(assignment.branch) != 0
        and episode.candidates_left()
    )
    selecting = config.candidates > 1 and assignment.depth > 0
    return Situation(
        input_ids=input_ids,
        world=assignment.world,
        agent=assignment.id,
        goal=assignment.goal,
        depth=assignment.depth,
        step=step,
        can_delegate=can_delegate,
        seed=episode.request_seed(assignment.id, step),
        tree_id=episode.tree_id,
        max_new_tokens=min(config.max_new_tokens, room),
        temperature=config.candidate_temperature if selecting else config.temperature,
    )


def _parse(text: str, generation: "Generation") -> Parsed:
    parsed = parse(text)
    if parsed.kind == "invalid" and generation.finish_reason == "length":
        cut = f"the response was cut after {len(generation.token_ids)} tokens"
        return dataclasses.replace(parsed, reason=f"{cut}: {parsed.reason}")
    return parsed


def _launched(steps: Sequence[Step]) -> int:
    return sum(len(step.children) for step in steps)


async def _carry_out(parsed: Parsed, delegation: Delegation, episode: Episode) -> _Outcome:
    assignment = delegation.parent
    if parsed.kind == "finish":
        return _Outcome(status="finished")
    if parsed.reason:  # invalid, or a delegation that cannot be read
        return _Outcome(episode.prompts.notice("invalid", reason=parsed.reason))
    if assignment.world.done:  # ended by another agent while this response was written
        return _Outcome(ENDED, status="done")
    if parsed.kind == "action":
        return _act(parsed.command, assignment, episode)
    refusals = filter(None, (assignment.world.refuse_goal(goal.text) for goal in parsed.goals))
    if refusal := next(refusals, None):
        return _Outcome(episode.prompts.notice("invalid", reason=refusal))
    children, answer = await episode.delegate(delegation, episode)
    return _Outcome(answer, children)


def _act(command: str, assignment: Assignment, episode: Episode) -> _Outcome:
    """One world action. Not a coroutine: between check and effect no other agent can act."""
    world, agent = assignment.world, assignment.id
    answer = world.lookup(agent, command)
    if answer is not None:
        result = StepResult(accepted=True, reward=0.0, done=world.done, observation=answer)
    else:
        result = world.step(agent, command)
        assignment.branch.world_actions += 1
    observation = episode.prompts.observation(world, agent, result)
    return _Outcome(observation, status="done" if world.done else None)
