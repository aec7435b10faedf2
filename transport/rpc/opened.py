"""Resources that the clients of a process have open, by kind: each has its room and its shares. No I/O."""

from collections.abc import Callable

import attrs

from warren.base.values import define
from warren.settings.config import Limits
from warren.transport.rpc.shares import Shares, several
from warren.transport.rpc.uploads import Room


@define(eq=False)
class Opened:
    """The resources that the clients of a process have open.

    Attributes:
        limits: the room for each kind, and the shares.
        alone: returns whether all clients are one principal.
        mcp_sessions: MCP sessions over HTTP.
        subscriptions: sessions that are followed, by subscriptions over WebSocket and over MCP.
        watches: watches of the list of sessions.
        room: files on their way to a prompt.
    """

    limits: Limits = attrs.field(factory=Limits)
    alone: Callable[[], bool] = several
    mcp_sessions: Shares = attrs.field(init=False)
    subscriptions: Shares = attrs.field(init=False)
    watches: Shares = attrs.field(init=False)
    room: Room = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        self.mcp_sessions = self._shares("MCP sessions", limits.mcp_sessions)
        self.subscriptions = self._shares("subscriptions", limits.subscriptions)
        self.watches = self._shares("watches", limits.watches)
        self.room = Room(
            self._shares("files that wait for their prompts", limits.uploads),
            self._shares("bytes of files that wait for their prompts", limits.upload_bytes),
        )

    def _shares(self, kind: str, most: int) -> Shares:
        return Shares(kind, most, self.limits, self.alone)
