"""The ACP agent over two streams: one client, one JSON-RPC message a line."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.transport.acp.agent import Agent, AgentSettings, MethodResult
from warren.transport.acp.servers import Servers
from warren.transport.acp.updates import Update
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import Dispatcher, Endpoint, EndpointBounds, GoneError, Work
from warren.transport.rpc.lines import LineChannel

UPDATE: Final = "session/update"
MAX_LINE: Final = 16 * 1024 * 1024
MAX_IN_FLIGHT: Final = 128
MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may wait for the client; the sender of another update waits then, and no turn does."""
LINGER: Final = 6.0
"""Seconds that prompts have to end once the input has ended and they are cancelled."""


async def serve_acp(
    service: SessionService,
    settings: AgentSettings,
    streams: tuple[trio.abc.ReceiveStream, trio.abc.SendStream],
    stop: trio.CancelScope | None = None,
) -> None:
    """Serve the client at the other end of two streams.

    Serving ends with the input, when the client no longer reads, or when `stop` is cancelled. Prompts are cancelled
    then, and answered if the client reads the answers within some seconds. Nothing that the client does raises.
    """
    bounds = EndpointBounds(MAX_IN_FLIGHT, outbox_bytes=MAX_BYTES, linger=LINGER)
    endpoint = Endpoint(LineChannel(*streams, MAX_LINE), bounds, stop)
    servers = Servers(settings.tools)
    await endpoint.run(lambda tasks: _AgentDispatcher(endpoint, service, settings, servers, tasks))
    await servers.drop_all()


class _AgentDispatcher(Dispatcher):
    """An agent behind an endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        service: SessionService,
        settings: AgentSettings,
        servers: Servers,
        tasks: trio.Nursery,
    ) -> None:
        self._endpoint = endpoint
        self.agent = Agent(service, self._say, self._ask, settings, servers, tasks)

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        if request_id is None:
            self.agent.notice(method, params)
            return None
        self._endpoint.check_room()
        work = self.agent.begin(method, params)
        if work is None:
            return jsonrpc.unknown_method(request_id, method)
        return Work(partial(self._answer, request_id, work))

    def refuse(self, request_id: jsonrpc.Id, error: WarrenError) -> bytes:
        number = error.numbers.acp
        return jsonrpc.error(request_id, error, jsonrpc.INTERNAL_ERROR if number is None else number)

    def hang_up(self) -> None:
        self.agent.cancel_all()

    async def _answer(
        self, request_id: jsonrpc.Id, work: Callable[[], Awaitable[MethodResult]]
    ) -> Mapping[str, Any] | None:
        answer = await work()
        if not answer.after:
            return answer.result
        # No checkpoint from here on: a cancelled task would send a second reply, with the error of the shutdown.
        self._endpoint.outbox.reply(jsonrpc.result(request_id, answer.result))
        for update in answer.after:
            self._endpoint.outbox.tell(_notification(answer.session_id, update))
        return None

    async def _say(self, session_id: str, update: Update) -> None:
        await self._endpoint.tell(_notification(session_id, update))

    async def _ask(self, method: str, params: Mapping[str, Any], sent: Callable[[], None]) -> jsonrpc.Response:
        try:
            return await self._endpoint.ask(method, params, sent)
        except GoneError:
            # When the client is gone, its prompts are cancelled, and this task with them. A made-up refusal could reach
            # the turn before that.
            await trio.sleep_forever()


def _notification(session_id: str, update: Update) -> bytes:
    return jsonrpc.notification(UPDATE, {"sessionId": session_id, "update": update})
