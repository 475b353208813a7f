"""The world in words: observations, answers to commands, reasons for refusals."""

from typing import TYPE_CHECKING

from sera_jax.worlds.textworld_sync.plan import Effect, fold

if TYPE_CHECKING:
    from sera_jax.worlds.textworld_sync.world import World


def observation(world: "World", agent: str) -> str:
    """Where the agent is, what the team has and lacks, and what can be done."""
    plan, room = world.plan, world.location[agent]
    names = [plan.names[i] for i in world.visible(room)]
    lines = [f"You are in the {room}. Ingredients here: {', '.join(names) or 'none'}."]
    lines += [inventory(world), *world.progress()]
    if not world.gate_open:
        behind = [dish for dish in plan.dishes if dish in plan.gated]
        hides = f"; the ingredients of {', '.join(behind)} are behind it" if behind else ""
        lines.append(f"The door is closed{hides}.")
    if world.cooldowns:
        resting = ", ".join(f"{tool} ({n} more)" for tool, n in world.cooldowns.items())
        lines.append(f"Tools resting, in team actions: {resting}.")
    lines.append(f"Team actions left: {world.steps_left}.")
    lines.append(f"You can: {'; '.join(world.valid_actions(agent))}.")
    return "\n".join(lines)


def inventory(world: "World") -> str:
    """What the whole team holds; it has one inventory."""
    names = world.plan.names
    held = [f"{names[i]} (still to be {', '.join(world.needs(i))})" for i in world.inventory]
    room = f" (room for {world.plan.capacity})" if world.plan.capacity else ""
    return f"The team holds{room}: {'; '.join(held) or 'nothing'}."


def answer(world: "World", agent: str, effect: Effect) -> str:
    """What an accepted command brought about, after it."""
    if effect.kind == "inventory":
        return inventory(world)
    if effect.kind == "read cookbook":
        return cookbook(world)
    if effect.kind == "look around":
        return observation(world, agent)
    if world.success:
        return f"{_event(world, effect)} {over(world)}"
    return f"{_event(world, effect)}\n{observation(world, agent)}"


def cookbook(world: "World") -> str:
    """All recipes with their preparations, also where the task itself keeps them back."""
    lines = ["Cookbook:"]
    for dish in world.task.dishes:
        recipe = [f"{i.name} ({', '.join(i.preparation) or 'as it is'})" for i in dish.recipe]
        lines.append(f"{dish.dish_id}: {'; '.join(recipe)}.")
    lines.append("Raw and uncut is how ingredients are found.")
    return "\n".join(lines)


def refusal(world: "World", agent: str, command: str) -> str:
    """Why a command changes nothing; asked before it is counted."""
    return f"Nothing happens: {_reason(world, agent, command)} That cost the team one action."


def over(world: "World") -> str:
    if world.success:
        return "All dishes are prepared and eaten. The task is complete."
    return "The team has no actions left. The task is over."


def progress(world: "World", d: int) -> str:
    """How far dish number `d` is."""
    return f"{world.plan.dishes[d]}: {_progress(world, d)}."


def _progress(world: "World", d: int) -> str:
    if d in world.eaten:
        return "eaten"
    if d in world.cooked:
        return "prepared, to be eaten"
    names, recipe, counter = world.plan.names, world.plan.recipes[d], world.counter
    ready = [names[i] for i in recipe if i in counter]
    if len(ready) == len(recipe):
        return "all ingredients ready, to be prepared"
    missing = [names[i] for i in recipe if i not in world.taken]
    have = f"ready on the counter {', '.join(ready)}" if ready else "nothing ready yet"
    return f"{have}; not yet fetched {', '.join(missing)}" if missing else have


def _event(world: "World", effect: Effect) -> str:
    plan, target = world.plan, effect.target
    match effect.kind:
        case "go":
            return f"You walk to the {target}."
        case "open":
            return "You open the door, for the whole team."
        case "nothing":
            return "The knife can be used from every room; there is no need to carry it."
        case "prepare":
            return f"You prepare {plan.dishes[target]}."
        case "eat":
            return f"You eat {plan.dishes[target]}."
    name = plan.names[target]
    ready = " It is as its recipe wants it and lies on the counter." * (target in world.counter)
    if effect.work:
        return f"The {name} is now {', '.join(sorted(effect.work.gives))}.{ready}"
    return f"You take the {name}.{ready}"


def _reason(world: "World", agent: str, command: str) -> str:
    plan, effect = world.plan, world.plan.effects.get(command)
    if effect is None and fold(command) in plan.effects:
        return "write a command exactly as it is listed."
    if effect is None:
        return f'"{command.strip():.60}" is not a command that can be used here.'
    match effect.kind:
        case "go":
            return "you are there already."
        case "open":
            return "the door is open."
        case "nothing":
            return "the knife is in the kitchen, and works from every room."
        case "prepare":
            if effect.target in world.cooked:
                return f"{plan.dishes[effect.target]} is prepared already."
            return f"not all ingredients of {plan.dishes[effect.target]} are on the counter."
        case "eat":
            already = effect.target in world.eaten
            return f"{plan.dishes[effect.target]} is {'eaten' if already else 'not prepared yet'}."
    return _item_reason(world, agent, effect)


def _item_reason(world: "World", agent: str, effect: Effect) -> str:
    i, item = effect.target, world.plan.items[effect.target]
    if i in world.counter:
        return f"{item.name} is on the counter, ready."
    if effect.kind == "take":
        if i in world.inventory:
            return f"the team holds {item.name} already."
        if i in world.visible(world.location[agent]):
            return "the team's inventory is full; finish what it holds first."
        return f"you see no {item.name} here."
    if i not in world.inventory:
        return f"the team does not hold {item.name}."
    if effect.work in world.works(i):
        tool = effect.work.tool
        return f"the {tool} rests for {world.cooldowns[tool]} more team actions, this one included."
    return f"that has been done to {item.name}."
