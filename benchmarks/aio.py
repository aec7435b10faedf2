"""What does a turn cost from an asyncio program? Processor time of the whole process, over a program on trio.

`warren.aio` runs trio in a thread of its own. Beside it stands trio as a guest of the asyncio loop, in the same thread,
which the decision record compares. All sessions are in memory, so the library's own work is as small as it gets.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, median_ratio, report
from warren import Config, RuntimeService, SessionService, open_supervisor
from warren.aio import open_supervisor as open_aio
from warren.transport.cli.process.tuning import tune

TURNS = 2_000
ROUNDS = 7
SESSIONS = 1_000
CONFIG = Config(model="fixed", provider="fixed")
Run = Callable[[str], Awaitable[object]]


class TrioModel(FixedModel):
    """The model of the benchmarks: it is quick, so it stays on the runtime's own loop."""

    loop = "trio"


async def _one_after_the_other(run: Run, session_id: str, turns: int) -> None:
    for _ in range(turns):
        await run(session_id)


async def _new(service: SessionService, count: int) -> list[str]:
    return [(await service.create_session(None)).session_id for _ in range(count)]


async def _on_trio(sessions: int, turns: int) -> float:
    """Return milliseconds of processor time a turn."""
    async with open_supervisor(CONFIG, providers={"fixed": TrioModel()}) as service:
        run = partial(_turn, service)
        ids = await _new(service, sessions)
        begun = time.process_time()
        async with trio.open_nursery() as nursery:
            for each in ids:
                nursery.start_soon(_one_after_the_other, run, each, turns)
        return 1e3 * (time.process_time() - begun) / (sessions * turns)


async def _turn(service: SessionService, session_id: str) -> None:
    await service.start_turn(session_id, "Go on, please.")


async def _on_asyncio(sessions: int, turns: int) -> float:
    async with open_aio(CONFIG, providers={"fixed": TrioModel()}) as service:
        return await _measured(partial(_turn, service), await _new(service, sessions), turns)


async def _measured(run: Run, ids: list[str], turns: int) -> float:
    begun = time.process_time()
    await asyncio.gather(*(_one_after_the_other(run, each, turns) for each in ids))
    return 1e3 * (time.process_time() - begun) / (len(ids) * turns)


class Guest:
    """Calls of a service whose trio is the guest of the asyncio loop, in the same thread."""

    def __init__(self, service: RuntimeService, nursery: trio.Nursery) -> None:
        self._service = service
        self._nursery = nursery
        self._loop = asyncio.get_running_loop()

    async def start_turn(self, session_id: str) -> None:
        """Run a turn."""
        await self.call(partial(self._service.start_turn, session_id, "Go on, please."))

    async def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run an async function on trio."""
        answer = self._loop.create_future()

        async def whole() -> None:
            answer.set_result(await work())

        self._nursery.start_soon(whole)
        return await answer


@asynccontextmanager
async def _guest() -> AsyncIterator[Guest]:
    loop = asyncio.get_running_loop()
    ready, over, stop = loop.create_future(), loop.create_future(), trio.Event()

    async def main() -> None:
        async with (
            open_supervisor(CONFIG, providers={"fixed": TrioModel()}) as service,
            trio.open_nursery() as nursery,
        ):
            ready.set_result(Guest(service, nursery))
            await stop.wait()

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        run_sync_soon_not_threadsafe=loop.call_soon,
        done_callback=over.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    yield await ready
    stop.set()
    (await over).unwrap()


async def _as_guest(sessions: int, turns: int) -> float:
    async with _guest() as guest:
        ids = await guest.call(partial(_new, guest._service, sessions))  # noqa: SLF001 - of this module
        return await _measured(guest.start_turn, ids, turns)


def _run(measure: Callable[[int, int], Coroutine[Any, Any, float]], sessions: int, turns: int) -> float:
    return asyncio.run(measure(sessions, turns))


def main() -> None:
    """Print the ratios for one session, a hundred and a thousand at once."""
    tune()
    figures, goals = dict[str, Any](), list[Goal]()
    for sessions in (1, 100, SESSIONS):
        turns = max(1, TURNS // sessions)
        on_trio = partial(trio.run, _on_trio, sessions, turns)
        found = median_ratio(partial(_run, _on_asyncio, sessions, turns), on_trio, ROUNDS)
        guest = median_ratio(partial(_run, _as_guest, sessions, turns), on_trio, ROUNDS)
        figures[f"{sessions}_sessions"] = {
            "trio_ms": round(found.theirs, 4),
            "thread_ms": round(found.ours, 4),
            "guest_ms": round(guest.ours, 4),
            "guest_over_trio": round(guest.ratio, 3),
        }
        what = f"text turn from asyncio, {sessions} session(s): processor time over trio"
        goals.append(Goal(what, found.ratio, "<=", 1.3, found.spread))
    report("What does a turn cost from an asyncio program?", figures, goals)


if __name__ == "__main__":
    main()
