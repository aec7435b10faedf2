"""A clock that was wrong for a while, and is right again."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw

from tests.support.compacting import chatty, settings
from tests.support.models import FunctionModel
from tests.support.runtime import new_session, open_runtime


async def test_a_clock_that_was_far_ahead(tmp_path: Path) -> None:
    """The next turn has the time of now, and so has a compaction: the session is not the newest one for ever."""
    async with open_runtime(FunctionModel(chatty), store=tmp_path, config=settings()) as service:
        for_turn, for_compaction = await new_session(service), await new_session(service)
        for session_id in (for_turn, for_compaction):
            for _ in range(3):
                await service.start_turn(session_id, "go on")
    far_ahead(tmp_path)
    async with open_runtime(FunctionModel(chatty), store=tmp_path, config=settings()) as service:
        before = datetime.now(UTC)
        await service.start_turn(for_turn, "go on")
        await service.compact(for_compaction)
        times = [(await service.read(each)).state.updated_at for each in (for_turn, for_compaction)]
        assert all(before <= time <= datetime.now(UTC) for time in times)
        newest = await new_session(service)
        assert (await service.list()).sessions[0].session_id == newest


def far_ahead(folder: Path) -> None:
    """Let all sessions have been changed in a hundred years."""
    century = timedelta(days=36_525) // timedelta(microseconds=1)
    db = apsw.Connection(str(folder / "sessions.sqlite3"))
    db.execute("UPDATE sessions SET updated_at = updated_at + ?", (century,))
    db.close()
