"""Saved trees as the page gets them: what was trained, what was scored, what was said."""

import pytest
import report_records
from report_records import DELEGATION, HOSTILE, encode

from sera_jax.report import viewer


def record(tree, objective="execution", **fields):
    rewards, advantages = report_records.credit(tree, objective)
    common = {"step": 3, "objective": objective, "rewards": rewards, "advantages": advantages}
    return tree.to_json() | common | fields


def page(tree, objective="execution", tokenizer=None, **fields):
    found = viewer.payload(record(tree, objective, **fields), tokenizer)
    return found, {node["id"]: node for node in found["nodes"]}


def test_execution_trains_every_word_of_nodes_with_an_advantage():
    tree = report_records.plain_tree(0, 0, 1.0)
    _, nodes = page(tree)
    assert nodes["0"]["steps"][0]["parts"] == ["", DELEGATION, ""]
    assert nodes["0"]["advantage"] == pytest.approx(0.6)
    _, nodes = page(tree, advantages={"0": 0.6})
    assert nodes["0.0"]["steps"][0]["parts"] == [tree.nodes[1].steps[0].text]


def test_decomposition_trains_the_block_alone():
    _, nodes = page(report_records.plain_tree(0, 0, 1.0), "decomposition")
    first, invalid, empty, finish = nodes["0"]["steps"]
    assert first["parts"] == [
        "I delegate. ",
        '<delegate>{"goal": "serve dish_1"}</delegate>',
        " Done.",
    ]
    assert first["reward"] == 1.0 and empty["reward"] == 0.0
    assert len(invalid["parts"]) == len(finish["parts"]) == 1
    assert nodes["0.0"]["reward"] == 1.0  # of the delegation that launched it
    assert nodes["0"]["reward"] is None


def test_rubric_trains_the_completion_and_no_transcript():
    _, nodes = page(report_records.forked_tree(0), "rubric")
    assert nodes["0.0"]["rubric_call"]["parts"][1].startswith("Here is a rubric.")
    assert all(len(step["parts"]) == 1 for node in nodes.values() for step in node["steps"])


def test_a_forked_group_has_scores_outcomes_and_ranking():
    _, nodes = page(report_records.forked_tree(0), "rubric")
    group = nodes["0.0"]
    totals = [attempt["score"]["total"] for attempt in group["attempts"]]
    assert totals == pytest.approx([0.9, 0.2, 0.75, 0.3, 0.8, 0.1, 0.35, 0.0])
    assert group["ranking"]["pairs"] == group["ranking"]["right"] == 16
    assert [len(attempt["nodes"]) for attempt in group["attempts"]] == [0] + 7 * [1]
    assert not group["attempts"][7]["score"]["answered"]  # 0 by rule


def test_rubric_weights_are_shown_as_the_score_uses_them():
    _, nodes = page(report_records.plain_tree(0, 0, 1.0))
    criteria = nodes["0.0"]["rubric"]["criteria"]
    assert [criterion["share"] for criterion in criteria] == pytest.approx([0.5, 0.3, 0.2])
    assert nodes["0.0"]["score"]["total"] == pytest.approx(0.84)
    assert nodes["0.1"]["rubric"] is None and nodes["0.1"]["score"]["total"] is None


def test_a_rubric_with_unusable_weights_is_shown_all_the_same():
    broken = record(report_records.plain_tree(0, 0, 1.0))
    broken["nodes"][1]["rubric"]["criteria"][0]["weight"] = "nan"
    node = viewer.payload(broken, None)["nodes"][1]
    assert [criterion["share"] for criterion in node["rubric"]["criteria"]] == [None] * 3
    assert node["score"]["total"] is None


def test_tokens_carry_text_and_both_log_probs():
    tree = report_records.plain_tree(0, 0, 1.0)
    own = [p for step in tree.root.steps for p in step.logprobs]
    found, nodes = page(
        tree, tokenizer=report_records.tokenizer(), trainer_logprobs={"0": [p + 1 for p in own]}
    )
    step = nodes["0"]["steps"][1]
    assert "".join(found["vocabulary"][i] for i in step["ids"]) == tree.root.steps[1].text
    assert step["trainer"] == pytest.approx([p + 1 for p in step["logprobs"]])
    assert nodes["0.0"]["steps"][0]["trainer"] == []
    assert nodes["0"]["prompt"] == "task: \n" and nodes["0"]["prompt_tokens"] == len("task: \n")


def test_without_a_tokenizer_ids_remain():
    found, nodes = page(report_records.plain_tree(0, 0, 1.0))
    assert found["vocabulary"] == {} and nodes["0"]["prompt"] is None
    assert nodes["0"]["steps"][0]["ids"] == list(encode(DELEGATION))


def test_rows_of_the_list():
    row = viewer.row(record(report_records.forked_tree(0), "rubric"), 1)
    assert (row["run"], row["step"], row["objective"], row["forks"]) == (1, 3, "rubric", 1)
    assert (row["tier"], row["family"], row["depth"], row["nodes"]) == (
        "easy",
        "hierarchical",
        1,
        2,
    )


def test_a_bare_tree_of_another_tool_opens():
    bare = {"task_id": "t", "reward": 0.0, "nodes": [
        {"id": "0", "parent": None, "depth": 0, "goal": "", "status": "done",
         "steps": [{"kind": "action", "text": HOSTILE}]}]}  # fmt: skip
    assert viewer.row(bare, 0)["step"] is None
    node = viewer.payload(bare, report_records.tokenizer())["nodes"][0]
    assert node["steps"][0]["parts"] == [HOSTILE] and node["steps"][0]["ids"] == []
