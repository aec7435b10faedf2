"""Calls from another event loop than that of the runtime: refused with a sentence, before anything has changed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from tests.parity.arguments import METHODS, OPENED, needed
from tests.support.runtime import new_session, open_runtime
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.settings.config import Config
from warren.transport.embed import open_supervisor

Foreign = Callable[[Callable[[], Awaitable[None]]], None]


async def call(service: SessionService, method: str, session_id: str) -> None:
    """Call a method with good arguments; one that opens something is entered."""
    arguments = needed(method, session_id)
    if method in OPENED:
        async with getattr(service, method)(**arguments):
            return
    await getattr(service, method)(**arguments)


def on_asyncio(main: Callable[[], Awaitable[None]]) -> None:
    """Run a program on an event loop of asyncio."""
    asyncio.run(main())  # type: ignore[arg-type]  # every one of ours is a coroutine


@pytest.mark.parametrize("run", [trio.run, on_asyncio], ids=["trio", "asyncio"])
async def test_every_method_refuses_another_loop(run: Foreign) -> None:
    """The error says what to do; the session stays free, and nothing was made or ended."""
    async with open_runtime(config=Config(compaction=CompactionConfig())) as service:
        session_id = await new_session(service)
        for method in (*METHODS, "drain", "stop"):
            with pytest.raises(RuntimeError, match=r"another event loop.*trio_token"):
                await trio.to_thread.run_sync(run, partial(call, service, method, session_id))
        assert (await service.start_turn(session_id, "hi")).text == "hi"
        assert [row.message_count for row in (await service.list()).sessions] == [2]


async def test_a_thread_may_call_with_the_token() -> None:
    """The way that the error names works."""
    async with open_runtime() as service:
        session_id, token = await new_session(service), trio.lowlevel.current_trio_token()

        def talk() -> str:
            return trio.from_thread.run(service.start_turn, session_id, "hi", trio_token=token).text

        assert await trio.to_thread.run_sync(talk) == "hi"


def test_a_runtime_says_on_asyncio_that_it_needs_trio() -> None:
    """The error comes before a store or a tool was opened, and says what to do."""

    async def main() -> None:
        async with open_supervisor(Config(model="no such model")):
            raise AssertionError

    with pytest.raises(
        RuntimeError, match=r"^warren.open_supervisor needs trio, and this is asyncio: use warren.aio.open_supervisor, "
    ):
        asyncio.run(main())
    with pytest.raises(RuntimeError, match=r"^warren.open_supervisor needs trio, and no loop of trio runs here: "):
        main().send(None)
