"""The files of messages in any home."""

from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from tests.storage.conformance import homes
from tests.storage.conformance.homes import Home, done, forget, put
from tests.storage.files import BYTES, blob, with_file
from tests.storage.samples import NOW, step, turn, wait
from tests.support.postgres import available
from warren.base.errors import CapacityExceededError, SessionNotFoundError, StoreError
from warren.calls.sessions import ForkRequest
from warren.conversation.attachments import Blob
from warren.conversation.messages import ToolResult
from warren.conversation.open_turn import KeptCall
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import Attach, Claim, Delete, Fork, Lease, Release, Sweep
from warren.storage.postgres import PostgresStore, attachments
from warren.storage.postgres.driver import Connection
from warren.storage.queries import AttachmentBytes, StoredAttachment, StoredMessages, UnsureFiles
from warren.storage.store import Store


async def bytes_of(store: Store, session_id: str, of: Blob, tenant: str = "default") -> bytes | None:
    """Return the bytes of a file as a caller of a tenant reads them, in two parts."""
    file = session_id, tenant, str(of.attachment.sha256)
    first = await store.read(AttachmentBytes(*file, 0, 300))
    rest = await store.read(AttachmentBytes(*file, 300, 10_000))
    return None if first is None else first + (rest or b"")


async def test_a_file_is_read_as_it_was_attached(home: Home, tmp_path: Path) -> None:
    """With its reference, also if the same session attaches it again under another name."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, Attach("a", (blob(), blob(b"\x00other", None))))
        await done(store, Attach("a", (blob(name="b.png"),)))
        assert await store.read(StoredAttachment("a", "default", str(blob().attachment.sha256))) == blob().attachment
        assert await bytes_of(store, "a", blob()) == BYTES
        assert await bytes_of(store, "a", blob(b"\x00other")) == b"\x00other"


async def test_a_hash_tells_nothing_to_those_who_do_not_have_the_file(home: Home, tmp_path: Path) -> None:
    """Neither another tenant nor another session of the same one."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        await done(store, Attach("a", (blob(),)))
        assert await bytes_of(store, "a", blob(), "other") is None
        assert await bytes_of(store, "b", blob()) is None
        assert await store.read(StoredAttachment("a", "other", str(blob().attachment.sha256))) is None
        with pytest.raises(SessionNotFoundError):
            await done(store, Attach("x", (blob(),)))


async def test_a_file_goes_with_the_last_session_that_has_it(home: Home, tmp_path: Path) -> None:
    """A fork shares the files of its original, and a session that attaches the same bytes does, too."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        await done(store, Attach("a", (blob(),)))
        await done(store, Attach("b", (blob(),)))
        await done(store, Fork("f", NOW, ForkRequest("a", at=2)))
        for gone, left in (("a", "f"), ("b", "f")):
            await done(store, Delete(gone))
            assert await bytes_of(store, left, blob()) == BYTES
            assert await bytes_of(store, gone, blob()) is None
        await done(store, Delete("f"))
        await done(store, turn("c"))
        assert await bytes_of(store, "c", blob()) is None


async def test_an_input_brings_its_files_or_neither_is_stored(home: Home, tmp_path: Path) -> None:
    """A full inbox takes no file, and neither does a key that was used before."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        first = put("1", key="k", limit=1)
        await done(store, attrs.evolve(first, blobs=(blob(),)))
        assert await bytes_of(store, "a", blob()) == BYTES
        other = blob(b"\x00other")
        with pytest.raises(CapacityExceededError):
            await done(store, attrs.evolve(put("2", limit=1), blobs=(other,)))
        assert not (await done(store, attrs.evolve(first, blobs=(other,)))).fresh
        assert await bytes_of(store, "a", other) is None


async def test_a_process_that_was_taken_for_dead_names_no_file_that_is_gone(home: Home, tmp_path: Path) -> None:
    """It hung, another process removed the file of its running turn, and it wakes up: its turn is not stored."""
    async with home(tmp_path) as store:
        if isinstance(store, EphemeralStore):
            return
        await store.write([turn("a"), Attach("a", (blob(),))])
        wake = forget(store)
        await done(store, Sweep())
        wake()
        (outcome,) = await store.write([with_file(turn("a", 1), blob())])
        assert isinstance(outcome, StoreError)
        assert outcome.cause == "lease_lost"
        assert (await store.read(StoredMessages("a")))[1] == 2


async def test_files_of_an_open_turn_stay(home: Home, tmp_path: Path) -> None:
    """Those of its messages, and those of results that are in no message yet, though its process is dead."""
    result = ToolResult("call-0", "a picture", attachments=(blob(b"result").attachment,))
    answer = ToolResult("call-1", "a picture", attachments=(blob(b"answer").attachment,))
    answered = wait(1, "outside", state="answered", result=answer)
    async with home(tmp_path) as store:
        if isinstance(store, EphemeralStore):
            return  # nothing outlives its process
        first = attrs.evolve(with_file(step("a"), blob(b"said")), calls=(KeptCall("call-0", 0, "done", result),))
        first = attrs.evolve(first, waits=(answered,))
        await store.write([first, Attach("a", (blob(), blob(b"said"), blob(b"result"), blob(b"answer")))])
        forget(store)
        await done(store, Sweep())
        assert await bytes_of(store, "a", blob()) is None
        assert await bytes_of(store, "a", blob(b"said")) == b"said"
        assert await bytes_of(store, "a", blob(b"result")) == b"result"
        assert await bytes_of(store, "a", blob(b"answer")) == b"answer"
        assert (await done(store, Claim("a"))).calls == first.calls


@pytest.mark.skipif(not available(), reason="there is no PostgreSQL here")
async def test_nobody_stores_a_turn_while_its_files_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes up in that moment waits, and finds its lease gone with the file."""
    looked = "SELECT FROM warren.sessions WHERE session_id = 'a' FOR NO KEY UPDATE NOWAIT"
    refused = list[int]()

    async def fetch(db: Connection, sql: str, *values: Any) -> Any:
        rows = await plain(db, sql, *values)
        if sql is attachments._UNSURE:  # noqa: SLF001 - the moment between two statements
            with psycopg.connect(url, autocommit=True) as other, pytest.raises(LockNotAvailable):
                other.execute(looked)
            refused.append(len(rows))
        return rows

    async with homes.postgres(Path()) as store:
        assert isinstance(store, PostgresStore)
        url = store._writer.config.url  # noqa: SLF001 - of the test's own
        await store.write([turn("a"), Attach("a", (blob(),))])
        forget(store)
        plain = Connection.fetch
        monkeypatch.setattr(Connection, "fetch", fetch)
        await done(store, Sweep())
    assert refused == [1]


async def test_files_that_no_message_names_go_when_their_process_is_dead(home: Home, tmp_path: Path) -> None:
    """Those of a living process stay, and so do those that a message or a waiting input names."""
    async with home(tmp_path) as store:
        if isinstance(store, EphemeralStore):
            assert not await store.read(UnsureFiles())  # nothing outlives its process
            return
        free = [Release(each, Lease(1)) for each in "abc"]
        await store.write([turn("a"), turn("b"), turn("c")])
        said = put("look", session_id="b", files=(blob(b"waits").attachment,))
        await store.write([Attach(each, (blob(), blob(b"waits"), blob(b"used"))) for each in "ab"])
        await store.write([with_file(turn("a", 1), blob(b"used")), said, *free])
        await done(store, Sweep())
        assert await bytes_of(store, "a", blob()) == BYTES
        assert await store.read(UnsureFiles())
        forget(store)
        await store.write([Attach("c", (blob(),)), Sweep()])
        assert await bytes_of(store, "a", blob(b"used")) == b"used"
        assert await bytes_of(store, "b", blob(b"waits")) == b"waits"
        for session_id, data in (("a", BYTES), ("a", b"waits"), ("b", BYTES), ("b", b"used")):
            assert await bytes_of(store, session_id, blob(data)) is None, (session_id, data)
        assert await bytes_of(store, "c", blob()) == BYTES
        assert await store.read(UnsureFiles())  # that of c
