"""Ctrl-C that loses nothing: the present wait is given up, the loop ends at a safe point."""

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """Context manager inside a running event loop. A second Ctrl-C ends the process at once."""

    def __init__(self):
        self.asked = False
        self._waiting: asyncio.Future | None = None

    def __enter__(self) -> "Interrupt":
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self.ask)
        return self

    def __exit__(self, *_) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def ask(self) -> None:
        """What the first Ctrl-C does."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping at the next safe point (Ctrl-C again: at once)", flush=True)
        if self._waiting:
            self._waiting.cancel()

    async def unless_asked(self, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None when an interrupt came before it was done."""
        self._waiting = asyncio.ensure_future(work)
        if self.asked:
            self._waiting.cancel()
        try:
            return await self._waiting
        except asyncio.CancelledError:
            if not self.asked:
                raise
            return None
        finally:
            self._waiting = None
