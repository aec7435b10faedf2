"""A store that goes back while a process lives: it goes on from what is there, and says what is gone."""

import logging
import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from tests.promises.processes import soon
from tests.promises.projected import check as check_projections
from tests.promises.talking import Talk, prompts, until_more
from tests.support.postgres import Server, needs_postgres
from tests.support.postgres_proxy import Wire, wire_to
from tests.support.standby import STREAMS, cut_off, promote, standby_of
from tests.support.waiting import until
from tests.transport.cli.process import Cli
from tests.transport.cli.serving import serve
from tests.transport.cluster.nodes import cluster
from warren.calls.facade import SessionService
from warren.client import connect
from warren.conversation.events import RunFailed, SessionMoved
from warren.conversation.memory import MemoryConfig
from warren.conversation.options import CompactionConfig
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.storage.maintenance.backup import back_up
from warren.storage.maintenance.doctor import examine as examine_files
from warren.storage.maintenance.postgres.doctor import examine
from warren.transport.embed import open_supervisor

LEASE = 3.0
HOLDERS = "SELECT key, expires_at FROM warren.holders"
AUDITED = "SELECT 1 FROM warren.audit WHERE action = 'went_back'"


@attrs.define
class Followed:
    """The numbers of the events that a subscriber got, those that are said to be gone, and the ends of lost turns."""

    session_id: str
    seqs: list[int] = attrs.field(factory=list)
    gone: list[tuple[int, int]] = attrs.field(factory=list)
    ends: set[int] = attrs.field(factory=set)

    async def follow(self, service: SessionService, last: float = math.inf) -> None:
        """Follow the session from its beginning up to an event."""
        async with service.subscribe(self.session_id, after_seq=0) as events:
            async for envelope in events:
                if isinstance(envelope.event, SessionMoved):
                    self.gone.append((envelope.event.first_lost, envelope.event.last_lost))
                else:
                    self.seqs.append(envelope.seq)
                    self.ends |= {envelope.seq} if isinstance(envelope.event, RunFailed) else set()
                    if envelope.seq >= last:
                        break

    def check(self, stored: list[int]) -> None:
        """Check that the numbers rose, and that all of them are stored but for those that are said to be gone."""
        assert self.seqs == sorted(set(self.seqs))
        left = {seq for seq in self.seqs if not any(first <= seq <= last for first, last in self.gone)}
        assert left <= {*stored, *self.ends}, "an event that is gone was not told of"
        assert set(stored) <= set(self.seqs), "a stored event was not shown"
        assert self.gone, "nothing is gone"


@attrs.define
class World:
    """A runtime, callers that talk, and subscribers."""

    service: SessionService
    talks: list[Talk]
    followed: list[Followed]

    async def go_back(self, change: Callable[[], object], wire: Wire | None) -> None:
        """Change the store in a thread, and return when turns are answered again; forget answers of before."""
        if wire is not None:
            wire.closed = True
            wire.cut()
        await trio.to_thread.run_sync(change)
        if wire is not None:
            wire.closed = False
        await until_more(self.talks, 1)  # the first answer may be of a turn that was stored before
        for each in self.talks:
            each.answered.clear()
        await until_more(self.talks, 3)

    async def check(self) -> None:
        """Check that each turn that was answered after the change is there, that no row is missing, and the events."""
        for talk in self.talks:
            ended = await soon(partial(self.service.start_turn, talk.session_id, "at last"))
            page = await self.service.history(talk.session_id, limit=1000)
            positions = [each.position for each in page.messages]
            assert positions == list(range(page.total)), "a message is missing"
            said = [text async for text in prompts(self.service, talk.session_id)]
            assert set(talk.answered) <= set(said), "an answered turn is lost"
            # A worker that has written nothing since the change finds it out by this, and refuses it once.
            stored = await soon(partial(self.stored, talk.session_id, ended.last_seq or 0))
            for followed in (each for each in self.followed if each.session_id == talk.session_id):
                with trio.fail_after(20):
                    await until(lambda: followed.seqs and followed.seqs[-1] >= stored[-1])  # noqa: B023 - see soon
                followed.check(stored)

    async def stored(self, session_id: str, last: int) -> list[int]:
        """Return the numbers of the stored events up to the last one."""
        found = Followed(session_id)
        with trio.fail_after(20):
            await found.follow(self.service, last)
        return [seq for seq in found.seqs if not any(first <= seq <= end for first, end in found.gone)]


@asynccontextmanager
async def alone(store: PostgresConfig | StoreConfig) -> AsyncIterator[list[SessionService]]:
    """Open a runtime on a store."""
    async with open_supervisor(Config(store=store), environ={}) as service:
        yield [service]


@asynccontextmanager
async def two_nodes(store: PostgresConfig | StoreConfig) -> AsyncIterator[list[SessionService]]:
    """Run two nodes on a store."""
    async with cluster(store) as nodes:
        yield [each.service for each in nodes]


@asynccontextmanager
async def with_memory(store: StoreConfig) -> AsyncIterator[list[SessionService]]:
    """Open a runtime that compacts often, into a memory."""
    compaction = CompactionConfig(100, recent_turn_budget=1, min_turns_between_compactions=2)
    config = Config(store=store, compaction=compaction, memory=MemoryConfig(store.path / "memory"))
    async with open_supervisor(config, environ={}) as service:
        yield [service]


@asynccontextmanager
async def workers(store: StoreConfig) -> AsyncIterator[list[SessionService]]:
    """Run a gateway of two processes, and be two clients of it."""
    cli = Cli(store.path.parent)
    try:
        options = ("--workers", "2", "--memory", "--compact-threshold", "100", "--compact-every", "2")
        _, url = serve(cli, "-m", "echo", "--store", str(store.path), *options)
        async with connect(url) as one, connect(url) as other:
            yield [one, other]
    finally:
        cli.close()


Open = Callable[..., AbstractAsyncContextManager[list[SessionService]]]


@asynccontextmanager
async def talking(store: PostgresConfig | StoreConfig, opened: Open = alone, count: int = 3) -> AsyncIterator[World]:
    """Open a store; some sessions of the first node run turns for the block, by calls at the last one.

    They are followed there, and at the first one.
    """
    async with opened(store) as (service, *others):
        other = (others or [service])[-1]
        talks = [Talk((await service.create_session("0")).session_id) for _ in range(count)]
        world = World(service, talks, [])
        async with trio.open_nursery() as nursery:
            for place in (service, other):
                for each in talks:
                    world.followed.append(Followed(each.session_id))
                    nursery.start_soon(world.followed[-1].follow, place)
            async with trio.open_nursery() as callers:
                for each in talks:
                    callers.start_soon(each.go_on, other)
                await until_more(talks, 2)
                yield world
                for each in talks:
                    each.ends = True
            await world.check()
            nursery.cancel_scope.cancel()


@contextmanager
def streaming() -> Iterator[Server]:
    """Start a server that standbys can follow, with the database of a store."""
    needs_postgres()
    server = Server.make(durable=True, more=lambda _: STREAMS)
    try:
        server.run("postgres", "CREATE DATABASE store")
        yield server
    finally:
        server.remove()


@pytest.mark.parametrize("opened", [alone, two_nodes])
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.time_limit(900)
async def test_a_standby_without_the_last_turns_takes_over(
    times: int, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Turns go on from what it has: no row is missing, and subscribers hear which events are gone."""
    with streaming() as first:
        servers = [first]
        async with wire_to(first.url("store")) as wire:
            config = PostgresConfig(wire.url, timeout=20.0, lease=LEASE)
            try:
                async with talking(config, opened) as world:
                    for number in range(times):
                        primary = servers[-1]
                        standby = await trio.to_thread.run_sync(standby_of, primary, f"{number}")
                        servers.append(standby)
                        await trio.to_thread.run_sync(cut_off, standby)
                        held = set(primary.run("store", HOLDERS))  # also a node that runs no turn loses a renewal
                        await until(lambda: held.isdisjoint(primary.run("store", HOLDERS)))  # noqa: B023 - see soon
                        await until_more(world.talks, 3)
                        wire.path = f"{standby.folder}/.s.PGSQL.5432"

                        def take_over(primary: Server = primary, standby: Server = standby) -> None:
                            primary.kill()
                            promote(standby)

                        await world.go_back(take_over, wire)
                found = await examine(PostgresConfig(wire.url), full=True)
                assert found.healthy, found
            finally:
                for each in servers[1:]:
                    each.remove()
        lines = [each for each in caplog.records if each.name == "warren.storage" and each.levelno >= logging.ERROR]
        assert len(lines) == times * (1 if opened is alone else 2), [each.getMessage() for each in lines]


def clean(server: Server, dump: Path) -> None:
    """Restore a dump over the tables, in the database that programs have open."""
    server.tool("pg_restore", "--clean", "--if-exists", "--no-owner", "-d", server.url("store"), str(dump))


def anew(server: Server, dump: Path) -> None:
    """Restore a dump into a new database of the same name."""
    server.drop("store")
    server.run("postgres", "CREATE DATABASE store")
    server.tool("pg_restore", "--no-owner", "--exit-on-error", "-d", server.url("store"), str(dump))


@pytest.mark.parametrize("restore", [clean, anew])
@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.time_limit(900)
async def test_a_dump_is_restored_in_place(restore: Callable[[Server, Path], None], times: int) -> None:
    """Turns go on from the dump, and nothing that the process writes meanwhile gets into the way of the restore."""
    with streaming() as server:
        config = PostgresConfig(server.url("store"), timeout=20.0, lease=LEASE)
        dump = server.folder / "dump"
        async with talking(config) as world:
            for _ in range(times):
                command = ("-Fc", "--schema=warren", "-f", str(dump), server.url("store"))
                await trio.to_thread.run_sync(server.tool, "pg_dump", *command)
                await until_more(world.talks, 3)
                await world.go_back(partial(restore, server, dump), None)
            await until(lambda: server.run("store", AUDITED))
        found = await examine(config, full=True)
        assert found.healthy, found


def renamed(backup: Path, store: Path) -> None:
    """Put a backup in the place of the file by its name."""
    shutil.copy(backup, store / "new")
    (store / "new").rename(store / "sessions.sqlite3")


def copied_without_log(backup: Path, store: Path) -> None:
    """Write a backup over the file, and remove its log first."""
    for ending in ("-wal", "-shm"):
        (store / f"sessions.sqlite3{ending}").unlink(missing_ok=True)
    shutil.copyfile(backup, store / "sessions.sqlite3")


def removed(backup: Path, store: Path) -> None:
    """Remove the files, and copy a backup there after a while."""
    for path in store.glob("sessions.sqlite3*"):
        path.unlink()
    time.sleep(0.3)
    shutil.copyfile(backup, store / "sessions.sqlite3")


@pytest.mark.parametrize("opened", [with_memory, workers])
@pytest.mark.parametrize("change", [renamed, copied_without_log, removed])
@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.time_limit(300)
async def test_a_file_is_replaced(
    change: Callable[[Path, Path], None], times: int, opened: Open, tmp_path: Path
) -> None:
    """The same for a store in files; its projections show what is there in the end."""
    store = tmp_path / "store"
    async with talking(StoreConfig(store, lease=LEASE), opened) as world:
        for number in range(times):
            copy = tmp_path / f"backup-{number}.sqlite3"
            await trio.to_thread.run_sync(partial(back_up, StoreConfig(store), copy))
            await until_more(world.talks, 3)
            await world.go_back(partial(change, copy, store), None)
    assert examine_files(StoreConfig(store), full=True).healthy
    check_projections(store)
