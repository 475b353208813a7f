"""The report in a real browser, clicked through at two widths. Needs Chromium (Debian: chromium).

SERA_REPORT_RUN=runs/NAME tries the first steps on a run of yours as well.
"""

import asyncio
import os
import pathlib
import time

import browser
import pytest
import report_records

from sera_jax.report.__main__ import write

pytestmark = pytest.mark.skipif(
    browser.PROGRAM is None, reason="no Chromium; runs where Debian's package chromium is installed"
)
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def report(run_folder):
    return write([str(run_folder)])[0]


def visit(steps):
    """Runs `steps(page)` in a browser; whatever the page complained of fails the test."""

    async def run():
        async with browser.browser() as page:
            await steps(page)
            assert page.problems == []

    asyncio.run(run())


async def fits(page, width):
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_from_run_to_tree_to_node_to_rubric_to_forked_group(report, tmp_path, width):
    async def steps(page):
        await page.resize(width)
        await page.open(report)
        await page.wait("document.querySelectorAll('.chart svg .line').length > 10")
        assert "Held-out success" in await page.text("#view")
        await fits(page, width)
        await page.photograph(tmp_path / "report.png")

        await page.click("#top nav a[href='#/trees']")
        await page.wait("document.querySelectorAll('tr.tree').length === 40")
        await page.evaluate(
            "(() => { const s = document.querySelector('select[name=objective]');"
            " s.value = 'rubric'; s.dispatchEvent(new Event('change')); })()"
        )
        await page.wait("document.querySelectorAll('tr.tree').length === 8")
        await fits(page, width)

        await page.click("tr.tree a")
        await page.wait("document.querySelectorAll('.node').length === 2")
        for mode in ("status", "reward", "advantage", "outcome"):
            await page.click(f"button[data-mode={mode}]")
            pressed = await page.evaluate(
                "document.querySelector('.switch [aria-pressed=true]').innerText"
            )
            assert pressed == mode
        await page.click(".node[data-node='0.0']")
        await page.wait("document.querySelector('#node').dataset.node === '0.0'")
        assert "serve dish_1" in await page.text("#goal")
        rubric = await page.text("#rubric")
        assert "50 %" in rubric and "gate 1 × weighted sum = 0.9" in rubric
        await page.click("#tokens")
        await page.wait("document.querySelectorAll('.token').length > 20")
        assert "largest 1.0e-4" in await page.text("#transcript")

        assert "16 of 16 pairs ranked right" in await page.text("#fork")
        assert await page.evaluate("document.querySelectorAll('.attempt').length") == 8
        await fits(page, width)
        await page.photograph(tmp_path / "fork.png")
        await page.click("[data-attempt='1'] a")
        await page.wait("document.querySelector('#node').dataset.node === '0.0@1/0.0@1'")
        assert "not committed" in await page.text("#view")
        await page.evaluate("history.back()")
        await page.wait("document.querySelector('#fork')")

    visit(steps)


def test_hostile_text_is_shown_and_does_nothing(report):
    async def steps(page):
        await page.resize(1280)
        await page.open(report, "#/trees")
        await page.open(report, "#/tree/39/0.0")
        await page.wait("document.querySelector('#goal')")
        goal = await page.text("#goal")
        assert "</script><script>window.harmed = 1; alert(1)</script><img src=x" in goal
        assert "U+2028" in goal and "U+0000" in goal and "U+202E" in goal and "U+D800" in goal
        assert await page.evaluate("typeof window.harmed") == "undefined"
        assert await page.evaluate("document.querySelectorAll('img').length") == 0

    visit(steps)


def test_the_policy_stops_code_that_is_not_the_pages_own(report):
    async def run():
        async with browser.browser() as page:
            await page.open(report)
            await page.evaluate(
                "document.body.append(Object.assign(document.createElement('script'),"
                " {textContent: 'window.harmed = 1'}))"
            )
            assert await page.evaluate("typeof window.harmed") == "undefined"
            assert "Content Security Policy" in page.problems[0]

    asyncio.run(run())


def test_five_hundred_trees_open_at_once(tmp_path):
    report_records.write_run(tmp_path, steps=50, trees=10)
    path, _ = write([str(tmp_path)])

    async def steps(page):
        await page.resize(1280)
        start = time.monotonic()
        await page.open(path, "#/trees")
        await page.wait("document.querySelectorAll('tr.tree').length === 50")
        assert time.monotonic() - start < 5
        start = time.monotonic()
        await page.evaluate("location.hash = '#/tree/480'")
        await page.wait("document.querySelectorAll('.node').length > 1")
        assert time.monotonic() - start < 1

    visit(steps)


@pytest.mark.skipif(
    "SERA_REPORT_RUN" not in os.environ, reason="runs when SERA_REPORT_RUN names a run"
)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_of_yours(width):
    path, _ = write([os.environ["SERA_REPORT_RUN"]])

    async def steps(page):
        await page.resize(width)
        await page.open(path)
        await page.click("#top nav a[href='#/trees']")
        await page.click("tr.tree a")
        await page.wait("document.querySelector('#transcript .turn')")
        await fits(page, width)
        await page.photograph(pathlib.Path(path).parent / f"viewer_{width}.png")

    visit(steps)
