"""The watch of the sessions of all nodes: what the others tell of theirs is merged into that of this process."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from warren.actors.events.watching import Watch
from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Node
from warren.base.values import frozen
from warren.conversation.views import SessionSummary
from warren.storage.queries import LivingNodes
from warren.transport.client.service import RemoteService
from warren.transport.cluster.own import NodeSessions, is_other

LOOK: Final = 0.5
"""Seconds between two looks for sessions that have moved and nodes that are gone."""
logger: Final = logging.getLogger(__name__)


@frozen
class OtherWatches:
    """The watches at the other nodes for one watcher here.

    Attributes:
        sessions: the sessions of this node.
        remote: returns the client of another node.
        watch: the watcher, which gets all changes.
    """

    sessions: NodeSessions
    remote: Callable[[Node], RemoteService]
    watch: Watch
    _watched: set[int] = attrs.field(factory=set)

    async def run(self, scope: trio.CancelScope) -> None:
        """Watch the nodes of now, and those that come, until the scope is cancelled."""
        with scope:
            async with trio.open_nursery() as nursery:
                while True:
                    with suppress(StoreError):  # the next look finds the same
                        store = await self.sessions.store()
                        for node in await store.read(LivingNodes()):
                            if is_other(node, store) and node.key not in self._watched:
                                self._watched.add(node.key)
                                nursery.start_soon(self._at, node)
                    await trio.sleep(LOOK)

    async def _at(self, node: Node) -> None:
        """Watch another node until the node ends or cannot be reached."""
        begun, running = False, dict[str, SessionSummary]()
        watch, wanted = self.watch, self.watch.wanted
        try:
            async with self.remote(node).watch(
                labels=wanted.labels, include_archived=wanted.include_archived
            ) as reader:
                begun = True
                watch.miss()  # of what came before
                async for changes in reader:
                    watch.merge(changes)
                    for row in changes.sessions:
                        if row.is_active:
                            running[row.session_id] = row
                        else:
                            running.pop(row.session_id, None)
        except WarrenError as exc:
            logger.info("the sessions of node %s are no longer watched: %s", node.name, exc)
        finally:
            self._watched.discard(node.key)
            for session_id, row in running.items():
                last = attrs.evolve(row, is_active=False, pending_approvals=0, lifecycle="stored")
                watch.changed(session_id, last, leaves=False)
            if begun:
                watch.miss()
