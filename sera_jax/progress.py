"""Progress of anything longer than a few seconds: count, rate, time left.

A bar on a terminal; elsewhere (a log file, CI) a plain line now and then.
"""

import time

import rich.console
import rich.progress

PLAIN_EVERY = 10.0  # seconds between lines where there is no terminal


class Progress:
    """Context manager; call it with how many are done and, if wanted, a short remark.

    `done` were done before: they count, but say nothing of the rate.
    """

    def __init__(self, what: str, total: int, unit: str, done: int = 0):
        self.what, self.total, self.unit = what, total, unit
        self._done = self._before = done
        self._console = rich.console.Console()
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> "Progress":
        self._start = self._printed = time.monotonic()
        self._remark = ""
        if self._console.is_terminal:
            self._bar = rich.progress.Progress(
                "{task.description}",
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.fields[rate]}"),
                rich.progress.TimeRemainingColumn(),
                rich.progress.TextColumn("{task.fields[remark]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(
                self.what, total=self.total, completed=self._done, rate="", remark=""
            )
            self._bar.start()
        return self

    def __call__(self, done: int, remark: str = "") -> None:
        self._done, self._remark = done, remark
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=done, rate=self._speed(), remark=remark)
        elif now - self._printed >= PLAIN_EVERY:
            self._printed = now
            self._line(f"{(self.total - done) / self._rate():.0f} s left")

    def __exit__(self, *_) -> None:
        if self._bar:
            self._bar.stop()
        else:
            self._line(f"{time.monotonic() - self._start:.0f} s")

    def _rate(self) -> float:
        seconds = max(time.monotonic() - self._start, 1e-9)
        return max(self._done - self._before, 1) / seconds

    def _speed(self) -> str:
        return f"{self._rate():.3g} {self.unit}/s"

    def _line(self, ending: str) -> None:
        parts = [f"{self._done}/{self.total}", self._speed(), self._remark, ending]
        print(f"{self.what}: {', '.join(part for part in parts if part)}", flush=True)
