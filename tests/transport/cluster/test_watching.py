"""Watching the list of sessions at a node: those of all nodes."""

from pathlib import Path

import pytest
import trio

from tests.support.models import Puppet
from tests.transport.cluster.nodes import cluster
from warren.calls.streams import ChangeReader
from warren.conversation.views import SessionChanges
from warren.settings.config import StoreConfig


async def reached(reader: ChangeReader, session_id: str, messages: int, *, active: bool) -> SessionChanges:
    """Return the first changes with a session of so many messages, whose turn runs or does not."""
    async for changes in reader:
        for row in changes.sessions:
            if (row.session_id, row.message_count, row.is_active) == (session_id, messages, active):
                return changes
    raise AssertionError("the watch has ended")


@pytest.mark.time_limit(60)
async def test_a_node_tells_of_the_sessions_of_all(tmp_path: Path) -> None:
    """Turns at another node are told of, also one that had begun before; if that node is lost, none of its runs."""
    puppet = Puppet()
    store = StoreConfig(tmp_path / "store", projections=False, synchronous="NORMAL")
    async with cluster(store, puppet=puppet) as (anna, berta), trio.open_nursery() as nursery:
        session_id = (await berta.service.create_session(None, model="puppet")).session_id
        nursery.start_soon(berta.service.start_turn, session_id, "one")
        await puppet.reached(1)
        async with anna.service.watch() as reader:
            await reached(reader, session_id, 0, active=True)
            puppet.say("1", None)
            await reached(reader, session_id, 2, active=False)
            own = (await anna.service.create_session(None)).session_id
            await reached(reader, own, 0, active=False)
            nursery.start_soon(berta.service.start_turn, session_id, "two")
            await reached(reader, session_id, 2, active=True)
            berta.gateway.cancel()
            await reached(reader, session_id, 2, active=False)
        puppet.say("2", None)
