"""What does an idle live session weigh, beyond its transcript?"""

import gc
import tracemalloc

import trio

from benchmarks.report import Goal, report
from warren import Config, open_supervisor

SESSIONS = 2_000


async def _bytes_per_session() -> float:
    async with open_supervisor(Config()) as service:
        await service.create_session("hello there")
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(SESSIONS):
            await service.create_session("hello there", model="echo")
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return (after - before) / SESSIONS


def main() -> None:
    """Print the traced bytes a session, after one turn, its two short messages and seven events included."""
    size = trio.run(_bytes_per_session)
    figures = {"bytes": round(size), "sessions": SESSIONS}
    report("What does an idle session weigh?", figures, [Goal("idle live session, KB", size / 1024, "<=", 10)])


if __name__ == "__main__":
    main()
