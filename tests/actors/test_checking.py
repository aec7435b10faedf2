"""The examination of a store through its runtime: what it says to whom, one at a time, ended with its caller."""

from pathlib import Path
from typing import Final

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.postgres import database
from warren import open_supervisor
from warren.base.errors import CapacityExceededError, PermissionDeniedError, PersistenceDisabledError
from warren.base.principals import LOCAL
from warren.calls.facade import RuntimeService
from warren.conversation.attachments import File
from warren.conversation.memory import MemoryConfig
from warren.reports.reports import StoreReport
from warren.settings.config import Config, PostgresConfig, StoreConfig

OPERATOR: Final = attrs.evolve(LOCAL, scopes=LOCAL.scopes | {"tenant:admin"})


async def examined(config: Config, service: RuntimeService) -> StoreReport:
    """Store a session with a file, and examine its store while it is open."""
    note = File(media_type="text/plain", data=b"a note of 23 characters", name="note.txt")
    await service.create_session("look", attachments=[note])
    assert config.store is not None
    report = await service.check_store()
    store = report.file or report.database
    assert store is not None
    assert (store.sessions, store.messages, store.files, store.file_bytes) == (1, 2, 1, 23)
    assert [(each.alive, each.sessions) for each in report.holders] == [(True, 1)]
    return report


async def test_a_store_in_files_is_examined_beside_its_sessions(tmp_path: Path) -> None:
    """The sizes are those of the file, the log and the memory; who may not see all tenants gets no ids."""
    config = Config(store=StoreConfig(tmp_path), memory=MemoryConfig(tmp_path / "memory"))
    async with open_supervisor(config, environ={}) as service:
        report = await examined(config, service)
        assert (report.healthy, report.database) == (True, None)
        assert report.file is not None
        assert min(report.file.bytes, report.file.log_bytes, report.file.disk_free) > 0
        assert report.memory is not None
        db = apsw.Connection(str(tmp_path / "sessions.sqlite3"))
        db.execute("DELETE FROM messages")
        db.close()
        for principal, named in ((LOCAL, 0), (OPERATOR, 1)):
            damaged = await service.as_(principal).check_store()
            assert not damaged.healthy
            (finding,) = [each for each in damaged.findings if each.check == "transcript"]
            assert len(finding.sessions) == named
        with pytest.raises(PermissionDeniedError, match="metrics:read"):
            await service.as_(attrs.evolve(LOCAL, scopes=LOCAL.scopes - {"metrics:read"})).check_store()


async def test_a_store_in_a_database_is_examined_beside_its_sessions() -> None:
    """Its server is named."""
    with database() as url:
        config = Config(store=PostgresConfig(url))
        async with open_supervisor(config, environ={}) as service:
            report = await examined(config, service)
            assert report.database is not None
            assert report.database.server
            health = service.health().store
            assert health is not None
            assert health.kind == "database"


async def test_there_is_one_examination_at_a_time_and_it_ends_with_its_caller(tmp_path: Path) -> None:
    """A second one is refused; once the first was given up, there may be another."""
    async with open_supervisor(Config(store=StoreConfig(tmp_path)), environ={}) as service:
        await service.create_session("hello")
        limiter = trio.to_thread.current_default_thread_limiter()
        threads, limiter.total_tokens = limiter.total_tokens, 1
        async with trio.open_nursery() as nursery, limiter:  # no thread is free: the first one waits
            ask(nursery, service.check_store)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(CapacityExceededError) as caught:
                await service.as_(OPERATOR).check_store()
            assert caught.value.cause == "store_check"
            nursery.cancel_scope.cancel()
        limiter.total_tokens = threads
        assert (await service.check_store()).healthy


async def test_without_a_store_there_is_nothing_to_examine() -> None:
    """The error is that of the capability."""
    async with open_supervisor(Config(), environ={}) as service:
        with pytest.raises(PersistenceDisabledError):
            await service.check_store()
