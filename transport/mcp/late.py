"""MCP at the gateway, opened when somebody first asks for it: its classes take most of a second to import."""

import logging
from typing import Any, Final

import attrs
import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.service import SessionService
from warren.transport.http.ending import Ending

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class LateMcp:
    """The application for `/mcp`: the first request waits until it is there, all others go on meanwhile."""

    _asked: trio.Event = attrs.field(factory=trio.Event, init=False)
    _known: trio.Event = attrs.field(factory=trio.Event, init=False)
    _app: ASGIApp = attrs.field(factory=lambda: PlainTextResponse("the server ends\n", 503), init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        self._asked.set()
        await self._known.wait()
        await self._app(scope, receive, send)

    async def hold(self, service: SessionService, ending: Ending, *, max_body: int, max_calls: int) -> None:
        """Wait to be asked, then be there until the server ends; from then on requests are told that it does."""
        try:
            await self._asked.wait()
            http = await trio.to_thread.run_sync(_load, abandon_on_cancel=True)
            # A cancellation would end the calls before they can be answered.
            with trio.CancelScope(shield=True):
                async with http.open_mcp(service, security=None, max_body=max_body, max_calls=max_calls) as app:
                    self._app = app
                    self._known.set()
                    await ending.wait()
        except ImportError:
            logger.exception("MCP cannot be served")
            self._app = PlainTextResponse("MCP is not installed as it should be; the server's log says more\n", 500)
        finally:
            self._known.set()


def _load() -> Any:
    """Import it, in a thread: sessions must not wait for that."""
    from warren.transport.mcp import http  # noqa: PLC0415 - only where it is asked for

    return http
