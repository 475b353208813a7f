"""The shared world of one task: several cooks, one set of items, tools and actions.

The rules are few and exact, and recorded play checks each of them (`tests/worlds`):
an action counts against the budget whether or not it was accepted; tools work in every room; a
tool rests after use for a number of the whole team's actions; only right preparations are valid.
"""

from typing import Any

from sera_jax.worlds.base import StepResult
from sera_jax.worlds.textworld_sync import text
from sera_jax.worlds.textworld_sync.plan import KNIFE, LOOKUPS, START, Effect, Plan, Work, fold
from sera_jax.worlds.textworld_sync.tasks import Task

ROOT = "root"


class World:
    """Mutable state of a task. Items and dishes are numbers, see `plan`; all else is public.

    Only `location` differs between agents. Agent "root" is there from the beginning.
    """

    __slots__ = (
        "plan", "location", "actual", "taken", "inventory", "counter", "cooked", "eaten",
        "gate_open", "cooldowns", "steps_left", "_valid", "_progress",
    )  # fmt: skip

    def __init__(self, task: Task):
        self.plan = Plan(task)
        self.location = {ROOT: START}
        self.actual = [item.found for item in self.plan.items]  # preparations each item has
        self.taken: set[int] = set()
        self.inventory: list[int] = []  # in the order of taking
        self.counter: set[int] = set()  # items that are as their recipe wants them
        self.cooked: set[int] = set()  # dishes prepared, and those eaten
        self.eaten: set[int] = set()
        self.gate_open = not task.include_doors
        self.cooldowns: dict[str, int] = {}  # tool -> actions until it is free; free ones absent
        self.steps_left = task.action_budget
        self._valid: dict[str, list[str]] = {}  # valid actions worked out since the last change
        self._progress: dict[int, str] = {}  # sentences about dishes unchanged since

    @property
    def task(self) -> Task:
        return self.plan.task

    @property
    def success(self) -> bool:
        # Eating needs a prepared dish, which needs every ingredient on the counter.
        return len(self.eaten) == len(self.plan.dishes)

    @property
    def done(self) -> bool:
        return self.success or self.steps_left <= 0

    def join(
        self, agent: str, room: str = START, *, beside: str | None = None, goal: str | None = None
    ) -> None:
        """Adds `agent` in `room`, or where agent `beside` stands; every goal is as good here."""
        place = room if beside is None else self.location[beside]
        if place not in self.plan.rooms:
            raise ValueError(f"no room {place!r} here; rooms: {', '.join(self.plan.rooms)}")
        self.location[agent] = place
        self._valid.pop(agent, None)

    def refuse_goal(self, goal: str) -> str:
        return ""  # free text; what it names is the verifier's business

    def copy(self) -> "World":
        other = World.__new__(World)
        other.plan = self.plan
        other.location = self.location.copy()
        other.actual = self.actual.copy()
        other.taken = self.taken.copy()
        other.inventory = self.inventory.copy()
        other.counter = self.counter.copy()
        other.cooked = self.cooked.copy()
        other.eaten = self.eaten.copy()
        other.gate_open = self.gate_open
        other.cooldowns = self.cooldowns.copy()
        other.steps_left = self.steps_left
        other._valid = {}
        other._progress = self._progress.copy()
        return other

    # --- What can be done ----------------------------------------------------------------------

    def visible(self, room: str) -> list[int]:
        """Items lying in `room` for anyone to see."""
        items = self.plan.items
        return [
            i
            for i in self.plan.items_in[room]
            if i not in self.taken and (self.gate_open or not items[i].gated)
        ]

    @property
    def inventory_full(self) -> bool:
        return 0 < self.plan.capacity <= len(self.inventory)

    def can_prepare(self) -> list[int]:
        recipes, ready = self.plan.recipes, self.counter.issuperset
        return [d for d, recipe in enumerate(recipes) if d not in self.cooked and ready(recipe)]

    def can_eat(self) -> list[int]:
        return sorted(self.cooked - self.eaten)

    def valid_actions(self, agent: str) -> list[str]:
        """Commands that `agent` can carry out now."""
        if agent not in self._valid:
            self._valid[agent] = self._list_valid(agent)
        return self._valid[agent].copy()

    def _list_valid(self, agent: str) -> list[str]:
        plan, room = self.plan, self.location[agent]
        valid = plan.opening[room].copy()
        if not self.gate_open:
            valid.append("open door")
        if room == START:
            valid.append("take knife")
        if not self.inventory_full:
            valid += [plan.take[i] for i in self.visible(room)]
        if self.inventory:
            self._add_work(valid)
        valid += [f"prepare {plan.dishes[d]}" for d in self.can_prepare()]
        valid += [f"eat {plan.dishes[d]}" for d in self.can_eat()]
        return valid

    def _add_work(self, valid: list[str]) -> None:
        held = [(self.plan.items[i], self.actual[i]) for i in self.inventory]
        if KNIFE not in self.cooldowns:
            valid += [w.command for item, has in held for w in item.cuts if not w.gives <= has]
        valid += [
            work.command
            for item, has in held
            for work in item.cooks
            if work.tool not in self.cooldowns and not work.gives <= has
        ]

    # --- Doing it ------------------------------------------------------------------------------

    def step(self, agent: str, command: str) -> StepResult:
        """Carries out one command. A world that is done refuses all and charges nothing."""
        if self.done:
            return StepResult(False, 0.0, True, text.over(self))
        effect = self._accepted(agent, command)
        reason = "" if effect else text.refusal(self, agent, command)
        if effect:
            self._carry_out(agent, effect)
        self._valid.clear()
        self.steps_left -= 1
        if self.cooldowns:
            self.cooldowns = {tool: n - 1 for tool, n in self.cooldowns.items() if n > 1}
        return StepResult(
            accepted=effect is not None,
            reward=float(self.success),  # done before, had it succeeded before
            done=self.done,
            observation=text.answer(self, agent, effect) if effect else reason,
        )

    def _accepted(self, agent: str, command: str) -> Effect | None:
        if command in self.valid_actions(agent):
            return self.plan.effects[command]
        folded = fold(command)
        if folded == "look around" or folded in LOOKUPS:
            return self.plan.effects[folded]
        return None

    def _carry_out(self, agent: str, effect: Effect) -> None:
        self._progress.pop(effect.dish, None)
        match effect.kind:
            case "go":
                self.location[agent] = effect.target
            case "open":
                self.gate_open = True
            case "take":
                self._take(effect.target)
            case "cut" | "cook":
                self._process(effect)
            case "prepare":
                self.cooked.add(effect.target)
            case "eat":
                self.eaten.add(effect.target)

    def _take(self, i: int) -> None:
        self.taken.add(i)
        if self.plan.items[i].plain:
            self.counter.add(i)
        else:
            self.inventory.append(i)

    def _process(self, effect: Effect) -> None:
        i, work, expected = effect.target, effect.work, self.plan.items[effect.target].expected
        has = self.actual[i] | work.gives
        if effect.kind == "cut" or "uncut" not in expected:
            has -= {"uncut"}
        self.actual[i] = has
        if has == expected:
            self.inventory.remove(i)
            self.counter.add(i)
        rest = self.task.tool_cooldown_steps
        if rest > 0:
            # The action that uses the tool already counts down, hence one more.
            self.cooldowns[work.tool] = rest + 1

    # --- What an agent is told -----------------------------------------------------------------

    def lookup(self, agent: str, command: str) -> str | None:
        """The inventory, which an agent may ask for at no cost to the world; else None."""
        return text.inventory(self) if fold(command) in LOOKUPS else None

    def observe(self, agent: str) -> str:
        return text.observation(self, agent)

    def progress(self) -> list[str]:
        """A sentence about every dish."""
        for d in range(len(self.plan.dishes)):
            if d not in self._progress:
                self._progress[d] = text.progress(self, d)
        return [self._progress[d] for d in range(len(self.plan.dishes))]

    def state(self, agent: str) -> dict[str, Any]:
        """The facts as data, as `agent` sees them; names instead of numbers."""
        plan, names = self.plan, self.plan.names
        return {
            "location": self.location[agent],
            "valid": sorted(self.valid_actions(agent)),
            "inventory": [names[i] for i in self.inventory],
            "prepared": sorted(names[i] for i in self.counter),
            "meals_prepared": [plan.dishes[d] for d in sorted(self.cooked)],
            "meals_eaten": [plan.dishes[d] for d in sorted(self.eaten)],
            "gate_open": self.gate_open,
            "cooldowns": dict(self.cooldowns),
            "steps_left": self.steps_left,
            "done": self.done,
            "success": self.success,
            "sees": [names[i] for i in self.visible(self.location[agent])],
            "holding": [(names[i], self.needs(i)) for i in self.inventory],
            "can_prepare": [plan.dishes[d] for d in self.can_prepare()],
            "can_eat": [plan.dishes[d] for d in self.can_eat()],
        }

    def works(self, i: int) -> list[Work]:
        """What item `i` still has to go through, cuts first."""
        item, has = self.plan.items[i], self.actual[i]
        return [work for work in item.cuts + item.cooks if not work.gives <= has]

    def needs(self, i: int) -> list[str]:
        """Preparations that item `i` still lacks, cuts first."""
        return [preparation for work in self.works(i) for preparation in sorted(work.gives)]
