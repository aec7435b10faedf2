"""The ACP agent over two streams: one client, one message a line."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from warren.errors import WarrenError
from warren.service import SessionService
from warren.transport.acp.agent import Agent, AgentSettings, Answer
from warren.transport.acp.updates import Update
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import Bounds, Endpoint, GoneError, Side, Work
from warren.transport.rpc.lines import LineChannel

UPDATE: Final = "session/update"
MAX_LINE: Final = 16 * 1024 * 1024
MAX_IN_FLIGHT: Final = 128
MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may wait for the client before the sender of another update waits. No turn ever does."""
LINGER: Final = 6.0
"""Seconds that prompts, which are cancelled at the end of the input, have to end."""


async def serve_acp(
    service: SessionService,
    settings: AgentSettings,
    streams: tuple[trio.abc.ReceiveStream, trio.abc.SendStream],
    stop: trio.CancelScope | None = None,
) -> None:
    """Serve the client at the other end of two streams until its end of file, until it is gone, or `stop` is cancelled.

    Then prompts are cancelled and answered, as far as the client reads that within some seconds. Nothing that the
    client does raises.
    """
    bounds = Bounds(MAX_IN_FLIGHT, outbox_bytes=MAX_BYTES, linger=LINGER)
    endpoint = Endpoint(LineChannel(*streams, MAX_LINE), bounds, stop)
    side = _AgentSide(endpoint, service, settings)
    await endpoint.run(lambda _tasks: side)
    await side.agent.servers.drop_all()


class _AgentSide(Side):
    """An agent behind an endpoint."""

    def __init__(self, endpoint: Endpoint, service: SessionService, settings: AgentSettings) -> None:
        self._endpoint = endpoint
        self.agent = Agent(service, self._say, self._ask, settings)

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        """See Side."""
        if request_id is None:
            self.agent.notice(method, params)
            return None
        self._endpoint.check_room()
        work = self.agent.begin(method, params)
        if work is None:
            return jsonrpc.unknown_method(request_id, method)
        return Work(partial(self._answer, request_id, work))

    def refuse(self, request_id: jsonrpc.Id, error: WarrenError) -> bytes:
        """See Side."""
        number = error.numbers.acp
        return jsonrpc.error(request_id, error, jsonrpc.INTERNAL_ERROR if number is None else number)

    def hang_up(self) -> None:
        """See Side."""
        self.agent.cancel_all()

    async def _answer(self, request_id: jsonrpc.Id, work: Callable[[], Awaitable[Answer]]) -> Mapping[str, Any] | None:
        answer = await work()
        if not answer.after:
            return answer.result
        # No checkpoint from here on: a cancellation would add the reply of a request that was given up.
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
            # Prompts are cancelled when the client is gone: an answer made up here could reach a turn before that.
            await trio.sleep_forever()


def _notification(session_id: str, update: Update) -> bytes:
    return jsonrpc.notification(UPDATE, {"sessionId": session_id, "update": update})
