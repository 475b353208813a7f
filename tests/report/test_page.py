"""The file itself: nothing of policy text in its markup, nothing asked of a network."""

import base64
import gzip
import html.parser
import json
import re
import subprocess
import sys

import pytest
import report_records

from sera_jax.report import page, runs
from sera_jax.report.__main__ import write


class Reader(html.parser.HTMLParser):
    """Blocks of data by id, and every tag and attribute that occurs."""

    def __init__(self, text):
        super().__init__()
        self.blocks, self.tags, self.attributes, self._id = {}, [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self._id = dict(attributes).get("id") if tag == "script" else None

    def handle_data(self, data):
        if self._id:
            self.blocks[self._id] = json.loads(gzip.decompress(base64.b64decode(data)))
            self._id = None


@pytest.fixture(scope="module")
def built(run_folder):
    return page.build(runs.load([run_folder]))


def test_policy_text_is_data_and_arrives_unchanged(built):
    found = Reader(built)
    assert "window.harmed" not in built and "\u2028" not in built and "\x00" not in built
    last = found.blocks["tree-39"]
    assert last["task"].endswith(report_records.HOSTILE)
    assert any(report_records.HOSTILE in node["goal"] for node in last["nodes"])
    assert found.tags.count("script") == 40 + 2  # trees, overview, the page's own code


def test_only_its_own_code_runs_and_nothing_is_fetched(built):
    found = Reader(built)
    (policy,) = [v for k, v in found.attributes if v and v.startswith("default-src 'none'")]
    assert "unsafe" not in policy and "http" not in policy
    assert not [v for k, v in found.attributes if k in ("src", "href") and v != "data:,"]
    assert not [k for k, _ in found.attributes if k.startswith("on")]
    code = built.rsplit("<script>", 1)[1].rsplit("</script>", 1)[0]
    assert page._hash(code) in policy
    links = set(re.findall(r"https?://[^\s\"'<]+", code))
    assert links == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert "innerHTML" not in code and "eval(" not in code


def test_overview_holds_runs_rows_and_charts(built):
    overview = Reader(built).blocks["overview"]
    assert len(overview["trees"]) == 40 and overview["saved"] == 40
    facts = overview["runs"][0]["facts"]
    assert facts["Optimizer steps"] == "10"
    assert facts["Objectives"] == "execution, decomposition, rubric"
    all_rows = [row for row in overview["heldOut"] if row["group"] == "all"]
    assert [(row["when"], row["n"]) for row in all_rows] == [("before", 40), ("after", 40)]
    assert next(c for c in overview["charts"] if c["name"] == "drift")["panels"][0]["series"]


def test_too_many_trees_are_thinned_evenly(run_folder, monkeypatch):
    monkeypatch.setattr(page, "MAX_TREES", 15)
    overview = Reader(page.build(runs.load([run_folder]))).blocks["overview"]
    assert [row["step"] for row in overview["trees"]] == [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    assert overview["saved"] == 40
    monkeypatch.setattr(page, "MAX_BYTES", 15_000)
    assert 0 < len(Reader(page.build(runs.load([run_folder]))).blocks["overview"]["trees"]) < 14


def test_several_runs_share_a_page_of_their_own(run_folder, tmp_path):
    other = tmp_path / "other"
    report_records.write_run(other, steps=3, trees=1)
    path, pictures = write([str(other), str(run_folder)])
    assert path == other / "comparison.html" and pictures
    overview = Reader(path.read_text()).blocks["overview"]
    assert [run["name"] for run in overview["runs"]] == ["other", "by_hand"]
    assert {row["run"] for row in overview["trees"]} == {0, 1}
    assert [row["name"] for row in overview["settings"] if row["differ"]] == ["seed"]


def test_a_name_with_markup_is_escaped(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>&amp;@@DATA@@"
    report_records.write_run(folder, steps=1, trees=1)
    found = Reader(page.build(runs.load([folder])))
    assert "img" not in found.tags


def test_command_line(run_folder, tmp_path):
    command = [sys.executable, "-m", "sera_jax.report"]
    done = subprocess.run([*command, run_folder], capture_output=True, text=True, check=True)
    assert str(run_folder / "report.html") in done.stdout and "PNGs" in done.stdout
    failed = subprocess.run([*command, tmp_path / "none"], capture_output=True, text=True)
    assert failed.returncode == 1 and "no metrics.jsonl in" in failed.stderr
    assert "Traceback" not in failed.stderr
