"""Calling a model over HTTP: one shared client, streams read until their end, every failure a ProviderError."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import httpx
import trio
from httpx_sse import EventSource

from warren import codec
from warren.errors import ProviderError
from warren.model import ModelReply, ModelRequest, Piece
from warren.transport.providers import failures
from warren.transport.providers.anthropic import MessagesDialect
from warren.transport.providers.dialect import Answer, Dialect
from warren.transport.providers.openai import ChatDialect
from warren.transport.providers.settings import ANTHROPIC, OPENAI, Endpoint

DIALECTS: Final[dict[str, Dialect]] = {OPENAI.name: ChatDialect(), ANTHROPIC.name: MessagesDialect()}
CONNECT_SECONDS: Final = 30.0
USAGE_SECONDS: Final = 5.0
"""How long the token counts of a finished answer may take."""
CLOSE_SECONDS: Final = 0.1
"""How long the server may take to end a stream after its last event; then the connection is not used again."""
IDLE_CONNECTIONS: Final = 100


# Failures that mean the same wherever they happen.
_BREAKS: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...]] = (
    (httpx.ConnectTimeout, "did not accept the connection in time", "connection"),
    (httpx.DecodingError, "sent what cannot be decompressed", "bad_response"),
    (
        (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError),
        "cannot be called: the request is not valid HTTP",
        "bad_request",
    ),
)
_FOR_GOOD: Final = ("bad_request", "certificate")


def new_client() -> httpx.AsyncClient:
    """Return the client that all providers share. Calls are bounded by the runtime, not by a pool they queue for."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS)
    direct = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}  # no proxy knows this machine
    return httpx.AsyncClient(limits=limits, mounts=direct, headers={"user-agent": "warren"})


def provider(endpoint: Endpoint, connect: Callable[[], httpx.AsyncClient], inactivity: float) -> "HttpProvider":
    """Return the provider that calls an endpoint; `connect` returns the client, `inactivity` is in seconds."""
    return HttpProvider(endpoint, DIALECTS[endpoint.vendor.name], connect, inactivity)


@attrs.frozen
class HttpProvider:
    """A model behind HTTP.

    Attributes:
        endpoint: where it is.
        dialect: the protocol it speaks.
        connect: returns the shared client.
        inactivity: how long the server may be silent, in seconds.
    """

    endpoint: Endpoint
    dialect: Dialect
    connect: Callable[[], httpx.AsyncClient] = attrs.field(repr=False)
    inactivity: float

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Call the model; see `warren.model.Provider`."""
        self._check()
        # The context may decode what it is asked for: once is enough.
        request = attrs.evolve(request, messages=tuple(request.messages))
        body = codec.encode(self.dialect.payload(request, self.endpoint))
        answer = self.dialect.answer(request, self.endpoint)
        await self._exchange(body, answer, emit)
        if not answer.complete:
            raise self._failure("ended its answer half way", "stream_broken")
        return answer.reply(len(body))

    def _check(self) -> None:
        if problem := self.endpoint.problem:
            cause = "unauthorized" if self.endpoint.url_problem is None else "bad_request"
            raise ProviderError(f"{self.endpoint.vendor.name}: {problem}", cause=cause, retryable=False)

    async def _exchange(self, body: bytes, answer: Answer, emit: Callable[[Piece], None]) -> None:
        """Send the request and take the answer; what breaks after the answer is complete does not matter."""
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            **self.dialect.headers(self.endpoint.key),
        }
        timeout = httpx.Timeout(self.inactivity, connect=min(CONNECT_SECONDS, self.inactivity), pool=None)
        url = self.dialect.url(self.endpoint)
        answered = False
        try:
            async with self.connect().stream("POST", url, content=body, headers=headers, timeout=timeout) as response:
                answered = response.is_success
                await self._take(response, answer, emit)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            if not answer.complete:
                raise self._broken(exc, answered=answered) from exc

    async def _take(self, response: httpx.Response, answer: Answer, emit: Callable[[Piece], None]) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not response.is_success:
            text = ""
            with suppress(httpx.HTTPError):  # the status alone says enough
                text = await _text(response)
            raise failures.refused(self.endpoint, response.status_code, response.headers, text)
        if kind == "text/event-stream":
            await _stream(response, answer, emit)
        elif kind.endswith("json"):
            for piece in answer.whole(await _text(response)):
                emit(piece)
        else:
            raise self._failure(f"answered with {kind or 'nothing known'}, not with JSON", "bad_response")

    def _broken(self, exc: Exception, *, answered: bool) -> ProviderError:
        """Return what a failure of the connection means to the caller."""
        for kinds, problem, cause in _BREAKS:
            if isinstance(exc, kinds):
                return self._failure(problem, cause)
        if isinstance(exc, httpx.TimeoutException):
            return self._failure(f"was silent for {self.inactivity:g} s", "timeout")
        if answered:
            return self._failure("broke the connection during its answer", "stream_broken")
        if isinstance(exc, httpx.ReadError | httpx.RemoteProtocolError):
            return self._failure("closed the connection without an answer", "connection")
        if "CERTIFICATE_VERIFY_FAILED" in str(exc):
            return self._failure("has a certificate that cannot be verified", "certificate")
        return self._failure(f"cannot be reached: {str(exc) or type(exc).__name__}", "connection")

    def _failure(self, problem: str, cause: str) -> ProviderError:
        vendor = self.endpoint.vendor.name
        return ProviderError(
            f"{vendor} at {self.endpoint.host} {problem}",
            cause=cause,
            retryable=cause not in _FOR_GOOD,
            details={"provider": vendor},
        )


async def _text(response: httpx.Response) -> str:
    return (await response.aread()).decode(errors="replace")


async def _stream(response: httpx.Response, answer: Answer, emit: Callable[[Piece], None]) -> None:
    """Feed a stream's events to the answer until the stream ends or nothing more can follow."""
    with trio.CancelScope() as scope:
        feeder = _Feeder(answer, emit, scope)
        # Leaving this loop early would strand httpx's generators half way, which trio rightly complains about. So the
        # feeder raises nothing, and cancelling the scope unwinds them from the inside.
        async for event in EventSource(response).aiter_sse():
            feeder.take(event.data)
    if feeder.failure is not None:
        raise feeder.failure


@attrs.define
class _Feeder:
    """Hands events to an answer and its pieces on; keeps the first failure and ends the reading."""

    answer: Answer
    emit: Callable[[Piece], None]
    scope: trio.CancelScope
    failure: Exception | None = None

    def take(self, data: str) -> None:
        if self.failure is not None:
            return
        try:
            for piece in self.answer.feed(data):
                self.emit(piece)
        except Exception as exc:  # noqa: BLE001 - raised again where the reading has ended
            self.failure = exc
            self.scope.cancel()
        self._hurry()

    def _hurry(self) -> None:
        """Wait for what may follow a complete answer, but not for long."""
        if self.answer.complete:
            left = CLOSE_SECONDS if self.answer.closed else USAGE_SECONDS
            self.scope.deadline = min(self.scope.deadline, trio.current_time() + left)
