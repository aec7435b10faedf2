"""How fast is an ask? Against the plainest one trio offers, a memory channel each way, and an actor of Pykka."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import trio

from benchmarks.peer import PeerError, peer
from benchmarks.report import Goal, median_ratio, report
from warren.base.errors import AgentError
from warren.mailbox import Mailbox, MailboxClosedError, Message

ASKS = 20_000
ROUNDS = 7


@attrs.frozen
class Ping(Message[int]):
    """The least that can be asked."""

    number: int


async def _drive(ask: Callable[[int], Awaitable[int]], callers: int) -> float:
    """Return asks per second of so many callers at once."""

    async def caller() -> None:
        for number in range(ASKS // callers):
            assert await ask(number) == number

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return ASKS / (time.perf_counter() - begun)


async def _mailbox(callers: int) -> float:
    mailbox = Mailbox()

    async def actor() -> None:
        while True:
            try:
                batch = await mailbox.receive()
            except MailboxClosedError:
                return
            for mail in batch:
                mail.answer(mail.message.number)  # type: ignore[attr-defined]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor)
        rate = await _drive(lambda number: mailbox.ask(Ping(number)), callers)
        mailbox.close(lambda: AgentError("closed"))
    return rate


async def _channel(callers: int) -> float:
    send, receive = trio.open_memory_channel[tuple[Ping, trio.MemorySendChannel[int]]](1_000)

    async def ask(number: int) -> int:
        answer, reply = trio.open_memory_channel[int](1)
        await send.send((Ping(number), answer))
        return await reply.receive()

    async def actor() -> None:
        async for message, answer in receive:
            answer.send_nowait(message.number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor)
        rate = await _drive(ask, callers)
        send.close()
    return rate


def main() -> None:
    """Print the ratios for one caller and for a hundred."""
    figures: dict[str, Any] = {}
    goals: list[Goal] = []
    for callers, goal in ((1, 1.0), (100, 2.5)):
        found = median_ratio(partial(trio.run, _mailbox, callers), partial(trio.run, _channel, callers), ROUNDS)
        figures[f"{callers}_callers"] = {"asks_per_s": round(found.ours), "bare_asks_per_s": round(found.theirs)}
        goals.append(Goal(f"ask, {callers} caller(s), over a bare trio channel", found.ratio, ">=", goal, found.spread))
    try:
        goals += _beside_pykka(figures)
    except PeerError as exc:
        figures["failed"] = {"pykka": str(exc)}
    report("How fast is an ask?", figures, goals)


def _beside_pykka(figures: dict[str, Any]) -> list[Goal]:
    goals = []
    with peer("pykka") as pykka:
        figures["versions"] = pykka.ask("versions")
        for callers in (1, 100):
            found = median_ratio(
                partial(trio.run, _mailbox, callers),
                lambda callers=callers: float(pykka.ask("asks", callers=callers, count=ASKS // 4)["rate"]),  # type: ignore[misc]
                ROUNDS,
            )
            figures[f"{callers}_callers"]["pykka_asks_per_s"] = round(found.theirs)
            goals.append(Goal(f"ask, {callers} caller(s), over pykka", found.ratio, ">=", 1.0, found.spread))
    return goals


if __name__ == "__main__":
    main()
