"""How many text turns does one runtime run without a store? On the built-in echo model, one session and a hundred."""

import time

import trio

from benchmarks.report import Goal, report
from warren import Config, SessionService, open_supervisor

TURNS = 6_000
ROUNDS = 5


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "hello there")


async def _rate(sessions: int) -> float:
    async with open_supervisor(Config()) as service:
        ids = [(await service.create_session(None, model="echo")).session_id for _ in range(sessions)]
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, TURNS // sessions)
        return TURNS / (time.perf_counter() - begun)


async def _bare(rounds: int) -> float:
    """The floor: a loop that only appends both messages to a list, with the one checkpoint a model call needs."""
    history: list[tuple[str, str]] = []
    begun = time.perf_counter()
    for _ in range(rounds):
        history.append(("user", "hello there"))
        await trio.lowlevel.checkpoint()
        history.append(("assistant", "hello there"))
    return rounds / (time.perf_counter() - begun)


def main() -> None:
    """Print the best of some rounds: what the code can do where nothing else runs."""
    one = max(trio.run(_rate, 1) for _ in range(ROUNDS))
    many = max(trio.run(_rate, 100) for _ in range(ROUNDS))
    bare = max(trio.run(_bare, 20 * TURNS) for _ in range(ROUNDS))
    figures = {
        "turns_per_s_1_session": round(one),
        "turns_per_s_100_sessions": round(many),
        "bare_appends_per_s": round(bare),
        "turn_over_bare": round(one / bare, 4),
    }
    report("How many turns in memory?", figures, [Goal("in-memory text turns/s, one session", one, ">=", 8_000)])


if __name__ == "__main__":
    main()
