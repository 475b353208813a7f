from sera_jax import progress
from sera_jax.progress import Progress


def test_plain_lines_where_there_is_no_terminal(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress("work", 10, "things", done=2) as report:
        for now[0], done, remark in ((1.0, 3, "early"), (12.0, 6, "fine"), (20.0, 10, "")):
            report(done, remark)
    # Four since the start took 12 s, so the other four take as long; 1 s and 20 s print nothing.
    assert capsys.readouterr().out.splitlines() == [
        "work: 6/10, 0.333 things/s, fine, 12 s left",
        "work: 10/10, 0.4 things/s, 20 s",
    ]
