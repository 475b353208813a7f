import asyncio
import os
import signal

import pytest

from sera_jax.interrupt import Interrupt


def interrupt_self():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_interrupt_ends_the_present_wait_and_is_remembered(capsys):
    async def main():
        with Interrupt() as interrupt:
            asyncio.get_running_loop().call_later(0.01, interrupt_self)
            assert await interrupt.unless_asked(asyncio.sleep(60, "slept")) is None
            assert interrupt.asked
            assert await interrupt.unless_asked(asyncio.sleep(60, "slept")) is None

    asyncio.run(main())
    assert "stopping at the next safe point" in capsys.readouterr().out


def test_without_an_interrupt_the_result_comes_through():
    async def main():
        with Interrupt() as interrupt:
            return await interrupt.unless_asked(asyncio.sleep(0, "slept")), interrupt.asked

    assert asyncio.run(main()) == ("slept", False)


def test_the_second_interrupt_is_the_usual_one():
    async def main():
        with Interrupt() as interrupt:
            interrupt.ask()
            with pytest.raises(KeyboardInterrupt):
                interrupt.ask()

    asyncio.run(main())


def test_a_cancellation_from_elsewhere_is_not_swallowed():
    async def main():
        with Interrupt() as interrupt:
            task = asyncio.ensure_future(interrupt.unless_asked(asyncio.sleep(60)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
