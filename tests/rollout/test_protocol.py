"""The parser of policy responses: what is accepted, what is refused, and that nothing breaks it."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sera_jax.rollout.protocol import Goal, parse


def delegate(obj) -> str:
    return f"<delegate>{json.dumps(obj)}</delegate>"


def test_action_with_thoughts_around_it():
    text = "The pantry first.\n<action> go to pantry </action> ok"
    parsed = parse(text)
    assert (parsed.kind, parsed.command, parsed.reason) == ("action", "go to pantry", "")
    assert text[slice(*parsed.span)] == "<action> go to pantry </action>"


def test_finish_keeps_its_message():
    assert parse("<finish>dish_1 is eaten,\nnothing left</finish>").message == (
        "dish_1 is eaten,\nnothing left"
    )


@pytest.mark.parametrize(
    "obj, goals",
    [
        ({"goal": " make dish_1 "}, (Goal("make dish_1"),)),
        ({"goal": "a", "max_steps": 3, "why": 0.5}, (Goal("a", 3),)),
        ({"goal": "a", "max_steps": None, "context": None}, (Goal("a"),)),
        ({"goal": "a", "context": " the salt is here\n"}, (Goal("a", context="the salt is here"),)),
        ({"delegations": [{"goal": "a", "context": "b"}]}, (Goal("a", context="b"),)),
        (
            {"delegations": [{"goal": "a"}, {"goal": "b", "max_steps": 2}]},
            (Goal("a"), Goal("b", 2)),
        ),
        ({"delegations": [{"goal": "a"}], "max_steps": 4}, (Goal("a", 4),)),
    ],
)
def test_delegations(obj, goals):
    parsed = parse(delegate(obj))
    assert (parsed.kind, parsed.goals, parsed.reason) == ("delegate", goals, "")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("I would rather think.", "no <action>"),
        ("<Action>look around</Action>", "no <action>"),
        ("<action>look around", "not closed"),
        ('<delegate>{"goal": "a"}', "not closed"),
        ("look around</action>", "not opened"),
        ("<action></action>", "is empty"),
        ("<finish> </finish>", "is empty"),
        ("<action>a</action><action>b</action>", "more than one"),
        ("<action>a</action><finish>b</finish>", "more than one"),
        ('<delegate>{"goal": "a"}</delegate><action>b</action>', "more than one"),
        ("<action>a</finish>", "followed by"),
        ("<action>a<action>", "followed by"),
        ("<action>a <finish>b</finish></action>", "more than one"),
        ("<action>go\x00to</action>", "control"),
        (f"<finish>{'x' * 40_000}</finish>", "longer than"),
    ],
)
def test_invalid(text, reason):
    parsed = parse(text)
    assert parsed.kind == "invalid"
    assert reason in parsed.reason


@pytest.mark.parametrize(
    "body, reason",
    [
        ("", "empty"),
        ("make dish_1", "not valid JSON"),
        ('{"goal": "a"', "not valid JSON"),
        ('{"goal": "a\x07"}', "control"),
        ('{"goal": "a\\u0007"}', "control"),
        ('{"goal": "\\ud800"}', "control"),
        ('["a"]', "must be a JSON object"),
        ("{}", "either"),
        ('{"goal": "a", "delegations": []}', "either"),
        ('{"goal": "  "}', "goal is empty"),
        ('{"goal": 3}', "is a text"),
        ('{"delegations": []}', "at least one"),
        ('{"delegations": {"goal": "a"}}', "must be a list"),
        ('{"delegations": [{"goal": "a"}, "b"]}', "is a text"),
        ('{"goal": "a", "max_steps": 0}', "max_steps"),
        ('{"goal": "a", "context": 3}', "context"),
        ('{"goal": "a", "context": "\\u0000"}', "control"),
        ('{"goal": "a", "max_steps": -2}', "max_steps"),
        ('{"goal": "a", "max_steps": 2.0}', "max_steps"),
        ('{"goal": "a", "max_steps": "2"}', "max_steps"),
        ('{"goal": "a", "max_steps": true}', "max_steps"),
        ('{"goal": "a", "max_steps": NaN}', "max_steps"),
        ('{"goal": "a", "max_steps": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 20_000, "nested too deeply"),
        ('{"goal": ' * 3_000, "nested too deeply"),
        ('{"goal": "' + "x" * 40_000 + '"}', "longer than"),
    ],
)
def test_a_failed_delegation_is_still_an_attempt_to_delegate(body, reason):
    parsed = parse(f"so: <delegate>{body}</delegate>")
    assert (parsed.kind, parsed.goals) == ("delegate", ())
    assert reason in parsed.reason
    assert parsed.span[0] == 4


PIECES = st.sampled_from(
    ["<action>", "</action>", "<delegate>", "</delegate>", "<finish>", "</finish>"]
    + ['{"goal": "', '"}', '{"delegations": [', "]}", '"max_steps": ', "{", "[", '"', "\\u", "\x00"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=12).map("".join))
def test_any_text_gives_an_answer(text):
    parsed = parse(text)
    usable = {"action": parsed.command, "delegate": parsed.goals, "finish": parsed.message}
    assert bool(parsed.reason) != bool(usable.get(parsed.kind))
    start, end = parsed.span
    assert 0 <= start <= end <= len(text)
    assert not parsed.kind == "invalid" or not (parsed.command or parsed.goals or parsed.message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["goal", "delegations", "max_steps", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_any_json_in_a_delegation_gives_goals_or_a_reason(obj):
    parsed = parse(delegate(obj))
    assert parsed.kind in ("delegate", "invalid")  # invalid: a text inside spelled another tag
    assert bool(parsed.goals) != bool(parsed.reason)
    for goal in parsed.goals:
        assert goal.text.strip() and goal.text.encode()
        assert goal.max_steps is None or goal.max_steps > 0


@pytest.mark.parametrize("unit", ["<action>", "<", "</action>x", "{", "<delegate>[", "a "])
def test_huge_texts_take_linear_time(unit):
    started = time.perf_counter()
    assert parse(unit * (2_000_000 // len(unit))).kind == "invalid"
    assert time.perf_counter() - started < 2.0
