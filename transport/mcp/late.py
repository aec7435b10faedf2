"""MCP at the gateway, loaded by its first request: the library takes most of a second to import."""

import logging
from typing import Any, Final

import attrs
import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.base.values import define
from warren.calls.facade import RuntimeService
from warren.transport.http.shutdown import Shutdown

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class LateMcp:
    """The application for `/mcp`. The first request waits until MCP is loaded; other paths are served meanwhile."""

    _asked: trio.Event = attrs.field(factory=trio.Event, init=False)
    _known: trio.Event = attrs.field(factory=trio.Event, init=False)
    _app: ASGIApp = attrs.field(factory=lambda: PlainTextResponse("the server is shutting down\n", 503), init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, once MCP is loaded."""
        self._asked.set()
        await self._known.wait()
        await self._app(scope, receive, send)

    async def hold(self, service: RuntimeService, shutdown: Shutdown, **options: Any) -> None:
        """Load MCP on the first request and serve it until the server ends; later requests are answered with 503.

        `options` are those of `open_mcp`.
        """
        try:
            await self._asked.wait()
            http = await trio.to_thread.run_sync(_load, abandon_on_cancel=True)
            # A cancellation would end the calls before they can be answered.
            with trio.CancelScope(shield=True):
                async with http.open_mcp(service, security=None, **options) as app:
                    self._app = app
                    self._known.set()
                    await shutdown.wait()
        except ImportError:
            logger.exception("MCP cannot be loaded: /mcp answers 500")
            self._app = PlainTextResponse("MCP cannot be loaded: see the log of the server\n", 500)
        finally:
            self._known.set()


def _load() -> Any:
    """Import MCP. It runs in a thread, so that sessions do not wait for the import."""
    from warren.transport.mcp import http  # noqa: PLC0415 - only when it is asked for

    return http
