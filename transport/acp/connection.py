"""One client on two streams: a reader that hands messages over, a writer that sends whole lines in order."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import trio

from warren.actors.tools.lines import LineReader, LineTooLongError
from warren.errors import CapacityExceededError, InvalidParamsError, WarrenError
from warren.service import SessionService
from warren.transport.acp.agent import Agent, AgentSettings, Answer, UnknownMethodError
from warren.transport.acp.updates import Update
from warren.transport.rpc import jsonrpc

UPDATE: Final = "session/update"
MAX_LINE: Final = 16 * 1024 * 1024
MAX_IN_FLIGHT: Final = 128
QUEUE: Final = 256
"""Lines that may wait for the client; whoever has another one waits for room. No turn ever does."""
QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Bytes that they may have before another one waits."""
DRAIN: Final = 6.0
FAREWELL: Final = 1.0

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Question:
    """A request of ours that has no answer yet."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: jsonrpc.Response | None = None


class Connection:
    """An ACP client and its agent.

    Attributes:
        serving: cancel it to end the connection in good order.
    """

    serving: trio.CancelScope

    def __init__(
        self,
        incoming: trio.abc.ReceiveStream,
        outgoing: trio.abc.SendStream,
        service: SessionService,
        settings: AgentSettings,
        serving: trio.CancelScope | None = None,
    ) -> None:
        self.serving = serving or trio.CancelScope()
        self._lines = LineReader(incoming, MAX_LINE)
        self._outgoing = outgoing
        self._agent = Agent(service, self._say, self._ask, settings)
        self._queue, self._waiting = trio.open_memory_channel[bytes](QUEUE)
        self._bytes = 0
        self._left = trio.lowlevel.ParkingLot()
        self._running = 0
        self._asked: dict[jsonrpc.Id, _Question] = {}
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Serve until the client's end of file, or until it is gone, or until `serving` is cancelled.

        Then prompts are cancelled and answered, as far as the client reads that within some seconds. Nothing that the
        client does raises.
        """
        async with trio.open_nursery() as writing:
            writing.start_soon(self._write)
            async with self._queue:
                await self._serve()
            writing.cancel_scope.deadline = trio.current_time() + FAREWELL

    async def _serve(self) -> None:
        async with trio.open_nursery() as tasks:
            with self.serving:
                await self._read(tasks)
            self._agent.cancel_all()
            tasks.cancel_scope.deadline = trio.current_time() + DRAIN
        await self._agent.servers.drop_all()

    async def _read(self, tasks: trio.Nursery) -> None:
        while True:
            try:
                line = await self._lines.next()
            except LineTooLongError as exc:
                await self._send(jsonrpc.invalid_request(str(exc)))
                continue
            if line is None:
                return
            if line.strip():
                await self._receive(line, tasks)

    async def _receive(self, line: bytes, tasks: trio.Nursery) -> None:
        match jsonrpc.read(line):
            case jsonrpc.Request(request_id, method, data):
                await self._begin(request_id, method, data, tasks)
            case jsonrpc.Notification(method, data):
                self._notice(method, data)
            case jsonrpc.Response() as response:
                self._hear(response)
            case jsonrpc.Refusal(request_id, number, error):
                await self._send(jsonrpc.error(request_id, error, number))

    def _hear(self, response: jsonrpc.Response) -> None:
        """Take an answer; one that nobody waits for, or the second one, is passed over."""
        question = self._asked.pop(response.id, None)
        if question is None:
            logger.info("the client answers what nobody asks")
        else:
            question.answer = response
            question.answered.set()

    def _notice(self, method: str, data: object) -> None:
        try:
            self._agent.notice(method, data)
        except InvalidParamsError as exc:
            logger.info("%s: %s", method, exc)

    async def _begin(self, request_id: jsonrpc.Id, method: str, data: object, tasks: trio.Nursery) -> None:
        """Start answering a request; no message after it is read before it has begun."""
        try:
            self._check_room()
            work = self._agent.begin(method, data)
        except UnknownMethodError:
            await self._send(jsonrpc.unknown_method(request_id, method))
        except WarrenError as exc:
            await self._send(_error(request_id, exc))
        else:
            self._running += 1
            tasks.start_soon(self._answer, request_id, method, work, name=method)

    def _check_room(self) -> None:
        if self._running >= MAX_IN_FLIGHT:
            raise CapacityExceededError(
                f"{self._running} requests are not answered yet: that is the limit", cause="max_in_flight"
            )

    async def _answer(self, request_id: jsonrpc.Id, method: str, work: Callable[[], Awaitable[Answer]]) -> None:
        try:
            await self._try(request_id, work)
        except WarrenError as exc:
            await self._send(_error(request_id, exc))
        except Exception:
            logger.exception("%s failed", method)
            await self._send(jsonrpc.internal_error(request_id))
        finally:
            self._running -= 1

    async def _try(self, request_id: jsonrpc.Id, work: Callable[[], Awaitable[Answer]]) -> None:
        answer = await work()
        await self._send(jsonrpc.result(request_id, answer.result))
        for update in answer.after:
            await self._say(answer.session_id, update)

    async def _say(self, session_id: str, update: Update) -> None:
        await self._send(jsonrpc.notification(UPDATE, {"sessionId": session_id, "update": update}))

    async def _ask(self, method: str, params: Mapping[str, Any], sent: Callable[[], None]) -> jsonrpc.Response:
        """Send a request to the client, say so, and return its answer; who waits in vain ends with his prompt."""
        number = next(self._numbers)
        self._asked[number] = question = _Question()
        try:
            await self._send(jsonrpc.request(number, method, params))
            sent()
            await question.answered.wait()
        finally:
            self._asked.pop(number, None)
        return question.answer or jsonrpc.Response(number, None, None)

    async def _send(self, line: bytes) -> None:
        """Put a line into the queue, once there is room for it; once the client is gone it goes nowhere."""
        while self._bytes >= QUEUE_BYTES:
            await self._left.park()
        self._bytes += len(line)
        try:
            await self._queue.send(line)
        except trio.BrokenResourceError:
            await trio.lowlevel.checkpoint()

    async def _write(self) -> None:
        """Send what waits, as much at once as there is. Once a line cannot be sent whole, the client is given up."""
        try:
            async with self._waiting:
                async for line in self._waiting:
                    lines = [line, *_at_hand(self._waiting)]
                    await self._outgoing.send_all(b"".join(each + b"\n" for each in lines))
                    self._make_room(self._bytes - sum(map(len, lines)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.serving.cancel()
        finally:
            self._make_room(0)

    def _make_room(self, left: int) -> None:
        self._bytes = left
        if left < QUEUE_BYTES:
            self._left.unpark_all()


def _at_hand(channel: trio.MemoryReceiveChannel[bytes]) -> list[bytes]:
    return [channel.receive_nowait() for _ in range(channel.statistics().current_buffer_used)]


def _error(request_id: jsonrpc.Id, exc: WarrenError) -> bytes:
    number = exc.numbers.acp
    return jsonrpc.error(request_id, exc, jsonrpc.INTERNAL_ERROR if number is None else number)
