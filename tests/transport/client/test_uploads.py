"""Files that are too large for a message, from a client to the conversation."""

import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.lowlevel

from tests.support.asking import ask
from tests.support.models import GatedModel
from tests.transport.client.cable import linked
from tests.transport.clients import gateway
from tests.transport.cluster.nodes import cluster
from tests.transport.gateway.serving import runtime
from warren.base.errors import InvalidParamsError, SessionBusyError
from warren.client import connect
from warren.conversation.attachments import File
from warren.conversation.messages import UserMessage
from warren.settings.config import StoreConfig
from warren.storage.sqlite.file import FILE_NAME

MIB = 1024 * 1024
MAGIC = b"\x89PNG\r\n\x1a\n"
PHOTO = MAGIC + bytes(20 * MIB - len(MAGIC))
SMALL: dict[str, Any] = {"max_message_bytes": 20_000}
IMAGE = File(MAGIC + bytes(100_000), name="a.png")
SEEN = "look\n[image a.png: 100008 bytes]"


def files_in(store: Path) -> int:
    """Return how many files a store has."""
    db = apsw.Connection(str(store / FILE_NAME))
    try:
        return int(db.execute("SELECT count(*) FROM blobs").get)
    finally:
        db.close()


async def test_twenty_megabytes_over_a_socket(tmp_path: Path) -> None:
    """They are stored as they were sent. Client and server hold them twice at most, and not at all afterwards."""
    async with runtime(tmp_path) as service, gateway(service) as port, connect(f"ws://127.0.0.1:{port}") as remote:
        session_id = (await remote.create_session(None)).session_id
        tracemalloc.start()
        try:
            result = await remote.start_turn(session_id, "look", attachments=[File(PHOTO, name="photo.png")])
            left, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert result.text == f"look\n[image photo.png: {len(PHOTO)} bytes]"
        assert peak < 45 * MIB
        assert left < 2 * MIB
        message = (await remote.history(session_id)).messages[0].message
        assert isinstance(message, UserMessage)
        hashed = message.attachments[0].sha256
        assert hashed == sha256(PHOTO).hexdigest()
        assert (await service.attachment(session_id, hashed)).data == PHOTO
        assert (await remote.start_turn(session_id, "again", attachments=[File(sha256=hashed)])).text
        assert files_in(tmp_path) == 1
        over = File(PHOTO + b"0")
        with pytest.raises(InvalidParamsError, match=r"\$\.size: is 20971521 bytes, and a file may have 20971520"):
            await remote.start_turn(session_id, "look", attachments=[over])


async def test_a_refused_prompt_is_sent_again_with_its_files(tmp_path: Path) -> None:
    """A busy session leaves no file in the store; a connection that is lost among the pieces costs nothing."""
    model = GatedModel()
    async with (
        runtime(tmp_path, gated=model) as service,
        linked(service, **SMALL) as (remote, wire),
        trio.open_nursery() as tasks,
    ):
        session_id = (await remote.create_session(None, model="echo")).session_id
        running = ask(tasks, remote.start_turn, session_id, "wait", model="gated")
        while not model.entered:  # noqa: ASYNC110 - a socket is between
            await trio.sleep(0.01)
        with pytest.raises(SessionBusyError):
            await remote.start_turn(session_id, "look", attachments=[IMAGE])
        assert files_in(tmp_path) == 0
        model.gate.set()
        await running.value()
        carried = wire.carried
        again = ask(tasks, remote.start_turn, session_id, "look", attachments=[IMAGE])
        while wire.carried < carried + 50_000:
            await trio.lowlevel.checkpoint()
        wire.cut()
        assert (await again.value()).text == SEEN
        made = await remote.create_session("look", model="echo", attachments=[IMAGE, File(b"text", name="b.txt")])
        assert made.text == f"{SEEN}\n[text b.txt: 4 bytes]"


async def test_a_prompt_for_a_session_of_another_node(tmp_path: Path) -> None:
    """The links between nodes have the same bound."""
    store = StoreConfig(tmp_path / "store", projections=False)
    async with cluster(store, settings=SMALL) as (anna, berta), connect(berta.url) as remote:
        session_id = (await anna.service.create_session(None, model="echo")).session_id
        assert (await remote.start_turn(session_id, "look", attachments=[IMAGE])).text == SEEN
        assert await berta.holder(session_id) == "anna"
