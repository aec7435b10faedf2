"""A file of every version that this program ever wrote opens in this one, whole."""

import hashlib
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import pytest
import trio

from tests.storage.memory.samples import entries
from tests.storage.samples import NOW, kept, step, wait
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import InvalidParamsError, SessionNotFoundError, StoreError
from warren.base.principals import Principal
from warren.base.retention import Retention
from warren.conversation.agents import AgentRef
from warren.conversation.attachments import Attachment
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import AssistantMessage, ContextMessage, SystemMessage, ToolResult, UserMessage
from warren.conversation.peers import Peer, PeerInfo
from warren.settings.config import StoreConfig
from warren.storage.maintenance.retention import plan
from warren.storage.memory import FileMemory
from warren.storage.memory.file import FILE_NAME as MEMORY_FILE
from warren.storage.operations import Claim, Claimed
from warren.storage.queries import (
    AttachmentBytes,
    LedgerSums,
    NextWake,
    SessionList,
    StoredAttachment,
    TokensSince,
    WaitingSessions,
    WaitList,
)
from warren.storage.runner import inline_runner
from warren.storage.sqlite import Holder, SqliteStore
from warren.storage.sqlite.file import FILE_NAME, VERSION, open_writer

virtual = pytest.mark.virtual_time
KEPT: Final = Path(__file__).parent / "versions"
STRIDE: Final = 1_000_000
WAKES: Final = datetime(2126, 1, 1, tzinfo=UTC)


@pytest.fixture(params=range(1, VERSION + 1))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a store of that version."""
    shutil.copy(KEPT / f"{request.param}.sqlite3", tmp_path / FILE_NAME)
    return tmp_path


async def session(service: Service, role: str) -> str:
    """Return the session that is in the file for that purpose."""
    (row,) = (await service.list(labels={"kept": role}, include_archived=True)).sessions
    return row.session_id


def deleted(folder: Path) -> list[str]:
    """Return the sessions that were deleted."""
    db = apsw.Connection(str(folder / FILE_NAME))
    ids = [row[0] for row in db.execute("SELECT session_id FROM sessions WHERE state = 2")]
    db.close()
    return ids


@virtual
async def test_conversations_go_on(store: Path) -> None:
    """A session of two turns has both, takes a third, and its event numbers rise."""
    async with open_runtime(store=store) as service:
        session_id = await session(service, "continued")
        told = await replay(service, session_id)
        result = await service.start_turn(session_id, "And a third thing?")
        messages = await transcript(service, session_id)
        assert [type(message) for message in messages] == [UserMessage, AssistantMessage] * 3
        assert messages[0] == UserMessage("What is a warren?")
        assert result.text
        events = await replay(service, session_id)
        assert events[: len(told)] == told
        assert [each.seq for each in told] == sorted({each.seq for each in told})
        assert events[len(told)].seq > told[-1].seq


@virtual
async def test_what_was_retired_stays_so(store: Path) -> None:
    """An archived session is readable and not startable; a deleted one is gone for good."""
    async with open_runtime(store=store) as service:
        archived = await session(service, "archived")
        assert (await transcript(service, archived))[0] == SystemMessage("Be brief.")
        gone = deleted(store)
        assert gone
        for session_id in (archived, *gone):
            with pytest.raises(SessionNotFoundError):
                await service.start_turn(session_id, "Come back")
        assert len((await service.list(include_archived=True)).sessions) == 3


@virtual
async def test_numbers_that_were_shown_stay_taken(store: Path) -> None:
    """The process that wrote the file died: what it may have shown and not stored is not numbered again."""
    async with open_runtime(store=store) as service:
        session_id = await session(service, "died")
        last = (await replay(service, session_id))[-1].seq
        await service.start_turn(session_id, "Are you there?")
        after = [each.seq for each in await replay(service, session_id, after_seq=last)]
        assert after[0] > last + STRIDE


@virtual
async def test_it_becomes_a_file_of_this_version(store: Path) -> None:
    """Opened once, it has this program's version and nothing is amiss in it."""
    async with open_runtime(store=store) as service:
        await new_session(service)
    db = apsw.Connection(str(store / FILE_NAME))
    assert db.pragma("user_version") == VERSION
    assert db.pragma("integrity_check") == "ok"
    db.close()


@virtual
@pytest.mark.parametrize("version", range(3, VERSION + 1))
async def test_titles_stay(tmp_path: Path, version: int) -> None:
    """A session is still called by the first words of its first prompt."""
    shutil.copy(KEPT / f"{version}.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as service:
        view = await service.read(await session(service, "continued"))
        assert view.state.title == "What is a warren?"


@virtual
async def test_titles_and_keys_of_hosts_stay(tmp_path: Path) -> None:
    """A title that was given is kept, and the key that created a session creates no other one."""
    shutil.copy(KEPT / "4.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as service:
        assert (await service.read(await session(service, "died"))).state.title == "Its last words"
        options: Any = {"labels": {"kept": "continued"}, "peer": Peer("ann", ("bob",)), "idempotency_key": "create-1"}
        again = await service.create_session("What is a warren?", **options)
        assert again.session_id == await session(service, "continued")
        with pytest.raises(SessionNotFoundError):
            await service.create_session("Forget this", idempotency_key="create-2")
        with pytest.raises(InvalidParamsError, match="prompt: use a new key"):
            await service.create_session("What is a burrow?", **options)


@virtual
@pytest.mark.parametrize("version", range(3, VERSION + 1))
async def test_what_waited_still_does(tmp_path: Path, version: int) -> None:
    """An input that no turn had taken enters its next turn; a key that was used brings what came of it."""
    shutil.copy(KEPT / f"{version}.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as service:
        session_id = await session(service, "died")
        assert [(each.text, each.key) for each in await service.inputs(session_id)] == [("It rains", "rain")]
        again = await service.start_turn(session_id, "Whatever", mode="queue", idempotency_key="once")
        assert again.text == "The process dies after this"
        await service.start_turn(session_id, "Shall we go out?")
        messages = await transcript(service, session_id)
        assert messages[2:4] == [ContextMessage("It rains", "weather"), UserMessage("Shall we go out?")]
        assert await service.inputs(session_id) == ()


@virtual
async def test_names_are_still_taken(tmp_path: Path) -> None:
    """Sessions find each other by the names that they were given; that of an archived one is free."""
    shutil.copy(KEPT / "3.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as service:
        assert await service.peers(await session(service, "continued")) == (PeerInfo("bob", reachable=True),)
        with pytest.raises(InvalidParamsError):
            await new_session(service, peer=Peer("ann"))
        await new_session(service, peer=Peer("old"))


@virtual
async def test_sessions_of_older_versions_are_of_the_default_tenant(store: Path) -> None:
    """Whoever wrote them had one tenant, and one principal."""
    async with open_runtime(store=store) as service:
        found = (await service.list(include_archived=True)).sessions
        assert {(each.tenant, each.owner) for each in found} == {("default", "local")}


@virtual
async def test_tenants_stay(tmp_path: Path) -> None:
    """Names among peers and keys of new sessions may be the same in two tenants."""
    shutil.copy(KEPT / "7.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as service:
        acme = service.as_(Principal("acme"))
        (row,) = (await acme.list()).sessions
        assert (row.session_id, row.tenant, row.owner) == ("acme-1", "acme", "ann")
        assert await acme.peers(row.session_id) == (PeerInfo("bob", reachable=False),)
        with pytest.raises(InvalidParamsError, match="acme-1"):
            await acme.create_session("Something else", idempotency_key="create-1")


def test_a_migration_is_whole_or_nothing(tmp_path: Path) -> None:
    """If a step fails the file stays what it was."""
    shutil.copy(KEPT / "1.sqlite3", tmp_path / FILE_NAME)
    db = apsw.Connection(str(tmp_path / FILE_NAME))
    db.execute("CREATE TABLE erasures (in_the_way)")
    before = list(db.execute("SELECT * FROM sqlite_schema"))
    with pytest.raises(apsw.SQLError):
        open_writer(StoreConfig(tmp_path))
    assert list(db.execute("SELECT * FROM sqlite_schema")) == before
    assert db.pragma("user_version") == 1
    db.close()


async def test_two_processes_come_for_an_old_file(tmp_path: Path) -> None:
    """Both open it; one brings it up to date, once."""
    shutil.copy(KEPT / "1.sqlite3", tmp_path / FILE_NAME)
    stores: list[SqliteStore] = []

    async def come() -> None:
        stores.append(await SqliteStore.open(StoreConfig(tmp_path)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        nursery.start_soon(come)
    (one,), (two,) = [await store.read(SessionList("default", labels={"kept": "continued"})) for store in stores]
    assert one == two
    assert one.last_seq == 17 + STRIDE
    for store in stores:
        await store.aclose()


@virtual
async def test_a_file_of_the_future_is_left_alone(tmp_path: Path) -> None:
    """A newer version is refused in words that say what to do, and not a byte of it changes."""
    async with open_runtime(store=tmp_path) as service:
        await new_session(service)
    db = apsw.Connection(str(tmp_path / FILE_NAME))
    db.pragma("user_version", VERSION + 1)
    db.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreError, match="use a newer one") as caught:
        await SqliteStore.open(StoreConfig(tmp_path), runner=inline_runner)
    assert caught.value.cause == "newer_schema"
    assert (tmp_path / FILE_NAME).read_bytes() == before


def of_the_future(path: Path) -> apsw.Connection:
    """Return a connection that has just done to a file what a newer program does; `data_version` tells of writes."""
    db = apsw.Connection(str(path))
    db.pragma("user_version", db.pragma("user_version") + 1)
    return db


@virtual
async def test_a_newer_program_takes_the_file_of_a_running_one(tmp_path: Path) -> None:
    """The older one writes nothing into it from then on and says why; it reads what it still understands."""
    async with open_runtime(store=tmp_path) as service:
        session_id = await new_session(service)
        newer = of_the_future(tmp_path / FILE_NAME)
        before = newer.pragma("data_version")
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: service.start_turn(session_id, "And now?"),
            lambda: service.create_session("Hello"),
            lambda: service.label(session_id, title="Other"),
            lambda: service.inject_context(session_id, "By the way"),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="use a newer one") as caught:
                await write()
            assert (caught.value.cause, caught.value.retryable) == ("newer_schema", False)
        assert "use a newer one" in str(service.health().store)
        assert newer.pragma("data_version") == before
        assert len((await service.list()).sessions) == 1
        newer.execute("ALTER TABLE sessions RENAME COLUMN labels TO tags")
        with pytest.raises(StoreError, match="use a newer one"):
            await service.list()
        newer.close()


async def test_a_newer_program_takes_the_memory_of_a_running_one(tmp_path: Path) -> None:
    """The older one remembers and forgets nothing any more."""
    memory = await FileMemory.open(MemoryConfig(tmp_path), runner=inline_runner)
    await memory.index(entries(["it rains"]))
    newer = of_the_future(tmp_path / MEMORY_FILE)
    before = newer.pragma("data_version")
    for write in (memory.index(entries(["it pours"])), memory.forget("s")):
        with pytest.raises(StoreError, match="use a newer one") as caught:
            await write
        assert caught.value.cause == "newer_schema"
    assert newer.pragma("data_version") == before
    assert await memory.search("rains")
    await memory.aclose()
    newer.close()


async def test_tokens_stay(tmp_path: Path) -> None:
    """Those of version 12 are told apart by the client that they count for; all older ones count for none."""
    shutil.copy(KEPT / "12.sqlite3", tmp_path / FILE_NAME)
    store = await SqliteStore.open(StoreConfig(tmp_path), runner=inline_runner)
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    assert await store.read(TokensSince("default", begin, "ci")) == 30
    assert (await store.read(LedgerSums("default", "model")))["echo"].turns == 2
    await store.aclose()


async def test_open_turns_stay(tmp_path: Path) -> None:
    """One of version 13 has its state and its calls for the process that takes it up."""
    shutil.copy(KEPT / "13.sqlite3", tmp_path / FILE_NAME)
    store = await SqliteStore.open(StoreConfig(tmp_path), runner=inline_runner)
    assert list(await store.read(WaitingSessions())) == ["open"]
    (found,) = await store.write([Claim("open")])
    assert isinstance(found, Claimed)
    assert found.calls == (kept(0, result="it rains"), kept(1, "waiting"), kept(2))
    assert found.record.turn == step("open", inputs=(3,), key="k", text="so far").record.turn
    await store.aclose()


async def test_waits_stay(tmp_path: Path) -> None:
    """A turn of version 14 sleeps on, and what its calls wait for is listed until its time is over."""
    shutil.copy(KEPT / "14.sqlite3", tmp_path / FILE_NAME)
    config = StoreConfig(tmp_path)
    then = attrs.evolve(Holder.of(config), clock=NOW.timestamp)
    store = await SqliteStore.open(config, holder=then, runner=inline_runner)
    asks, given = wait(1), wait(0, "client")
    asks, given = (each.changed(until=each.since + timedelta(days=7)) for each in (asks, given))
    assert await store.read(NextWake()) == WAKES
    assert list(await store.read(WaitingSessions())) == []
    assert await store.read(WaitList("turns", ["approval"])) == [("open", asks, None)]
    answered = given.changed(state="answered", result=ToolResult("call-0", "it rains"))
    (found,) = await store.write([Claim("open")])
    assert isinstance(found, Claimed)
    assert found.record.turn == step("open", inputs=(3,), key="k", text="so far", wakes=WAKES).record.turn
    assert found.waits == (asks, answered)
    await store.aclose()


async def test_a_schedule_stays(tmp_path: Path) -> None:
    """A schedule of version 16 is due at its time, and has what became of its run."""
    shutil.copy(KEPT / "16.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as service:
        (found,) = (await service.schedules()).schedules
        assert (found.prompt, found.cron, found.zone) == ("Water the plants.", "0 12 * * *", "Europe/Berlin")
        assert (found.next_at, found.state) == (datetime(2126, 1, 2, 11, tzinfo=UTC), "active")
        assert [each.state for each in found.runs] == ["missed"]


async def test_what_waits_for_others_stays(tmp_path: Path) -> None:
    """Version 17 has a child session of an agent, a prompt for later, a trigger, and a webhook with a delivery."""
    shutil.copy(KEPT / "17.sqlite3", tmp_path / FILE_NAME)
    async with open_runtime(store=tmp_path) as everybody:
        service = everybody.as_(Principal("family", "ann"))
        (child,) = (await service.list(delegated_by="parent")).sessions
        (later,) = await service.inputs(child.session_id)
        assert (child.session_id, later.text, later.not_before) == ("child", "Water the plants.", WAKES)
        (trigger,) = (await service.triggers()).triggers
        assert (trigger.trigger_id, trigger.session_id, trigger.state) == ("trigger", "child", "active")
        (webhook,) = (await service.webhooks()).webhooks
        assert (webhook.url, webhook.labels) == ("https://example.com/hooks", {"kept": "child"})
        (delivery,) = (await service.deliveries(webhook.webhook_id)).deliveries
        assert (delivery.state, delivery.attempts, delivery.status) == ("pending", 3, 503)
        assert delivery.next_at == WAKES
        gardener = await service.agent("gardener")
        assert (gardener.spec.instructions, gardener.here) == ("Keep the plants alive.", False)
        assert child.agent == AgentRef("gardener", gardener.version)
        assert (await service.list(agent="gardener")).sessions == (child,)


async def test_the_secret_of_tokens_stays(tmp_path: Path) -> None:
    """Tokens that were made with version 15 are taken."""
    shutil.copy(KEPT / "15.sqlite3", tmp_path / FILE_NAME)
    store = await SqliteStore.open(StoreConfig(tmp_path), runner=inline_runner)
    assert await store.secret("completions") == b"\x5e" * 32
    await store.aclose()


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_retention_is_planned_for_every_version(tmp_path: Path, version: int) -> None:
    """A plan only reads the file: one of an older version stays as it is, and the plan has its sessions."""
    shutil.copy(KEPT / f"{version}.sqlite3", tmp_path / FILE_NAME)
    before = (tmp_path / FILE_NAME).read_bytes()
    retention = Retention(superseded=1, events=1, archived=1, audit=1, usage=1)
    planned = plan(StoreConfig(tmp_path), retention, datetime(2030, 1, 1, tzinfo=UTC))
    assert planned.shares
    assert planned.sessions
    assert not planned.damaged
    assert (tmp_path / FILE_NAME).read_bytes() == before


async def test_files_stay(tmp_path: Path) -> None:
    """A session of version 9 has its image."""
    shutil.copy(KEPT / "9.sqlite3", tmp_path / FILE_NAME)
    data = b"\x89PNG\r\n\x1a\nwarren"
    store = await SqliteStore.open(StoreConfig(tmp_path), runner=inline_runner)
    (row,) = await store.read(SessionList("default", labels={"kept": "continued"}))
    hashed = hashlib.sha256(data).hexdigest()
    file = row.session_id, "default", hashed
    assert await store.read(StoredAttachment(*file)) == Attachment("image/png", hashed, len(data), "a.png")
    assert await store.read(AttachmentBytes(*file, 0, 99)) == data
    await store.aclose()
