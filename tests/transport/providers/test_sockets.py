"""The HTTP providers against real sockets: what breaks, what stays silent, what is cancelled."""

import socket
from collections.abc import Awaitable, Callable

import httpx
import pytest
import trio

from tests.support.waiting import AT_ONCE
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, reset, serve
from tests.transport.providers.calls import CLAUDE, GPT, Outcome, environ, on_socket, over, request
from tests.transport.providers.dialects import DONE, STOP, delta, more, opened, start, stopped
from warren.base.errors import ProviderError
from warren.models.model import Emitted, TextPiece
from warren.transport.providers import open_providers

FIRST = {GPT: [delta("Hel")], CLAUDE: [start(input_tokens=3), opened(0, "text"), more(0, text="Hel")]}
FINISH = {GPT: [delta("lo", "stop")], CLAUDE: [more(0, text="lo"), stopped("end_turn", output_tokens=2)]}
CLOSE: dict[str, list[object]] = {GPT: [DONE], CLAUDE: [STOP]}

Stream = trio.SocketStream
both = pytest.mark.parametrize("model", [GPT, CLAUDE])


def wire(*data: object) -> bytes:
    """Return events as chunks of a chunked body."""
    return b"".join(chunk(event(item)) for item in data)


def streaming(then: Callable[[Stream], Awaitable[None]], *data: object) -> Callable[[Request, Stream], Awaitable[None]]:
    """Return a handler that sends events and then does as it is told."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD + wire(*data))
        await then(stream)

    return handle


async def closing(stream: Stream) -> None:
    """Close the connection without an end to the body."""
    await stream.aclose()


async def resetting(stream: Stream) -> None:
    """Reset the connection once its data has arrived."""
    await trio.sleep(0.05)
    reset(stream)


async def ending(stream: Stream) -> None:
    """End the body as HTTP wants it."""
    await stream.send_all(END)


async def holding(_: Stream) -> None:
    """Keep the connection open and say nothing more."""
    await trio.sleep_forever()


@both
@pytest.mark.parametrize("breaking", [closing, resetting, ending])
async def test_stream_broken_half_way(model: str, breaking: Callable[[Stream], Awaitable[None]]) -> None:
    """A stream that ends before the model said why it stopped is broken, and worth another try."""
    pieces: list[Emitted] = []
    with pytest.raises(ProviderError) as caught:
        await on_socket(streaming(breaking, *FIRST[model]), request(model), pieces)
    assert (caught.value.cause, caught.value.retryable) == ("stream_broken", True)
    assert pieces == [TextPiece("Hel")]


@both
@pytest.mark.parametrize("breaking", [closing, resetting, ending])
async def test_break_after_the_stop_reason(model: str, breaking: Callable[[Stream], Awaitable[None]]) -> None:
    """A stream that breaks after the stop reason is a whole answer, also without its last event."""
    outcome = await on_socket(streaming(breaking, *FIRST[model], *FINISH[model]), request(model))
    assert outcome.reply.message.text == outcome.text == "Hello"
    assert outcome.reply.message.stop_reason == "end_turn"


@both
@pytest.mark.virtual_time
async def test_silence_in_the_stream(model: str) -> None:
    """A server that falls silent is given up after the inactivity limit."""
    began = trio.current_time()
    with pytest.raises(ProviderError) as caught:
        await on_socket(streaming(holding, *FIRST[model]), request(model))
    assert (caught.value.cause, caught.value.retryable) == ("timeout", True)
    assert 300 <= trio.current_time() - began < 301


@both
@pytest.mark.virtual_time
async def test_silence_before_the_answer(model: str) -> None:
    """A server that accepts the request and never answers is given up after the inactivity limit."""

    async def handle(_: Request, stream: Stream) -> None:
        await holding(stream)

    began = trio.current_time()
    with pytest.raises(ProviderError, match="was silent for 300 s") as caught:
        await on_socket(handle, request(model))
    assert caught.value.cause == "timeout"
    assert 300 <= trio.current_time() - began < 301


@pytest.mark.virtual_time
async def test_comments_are_signs_of_life() -> None:
    """A slow model whose server sends comments meanwhile is waited for."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD)
        for _second in range(5):
            await trio.sleep(200)
            await stream.send_all(chunk(b": still thinking\n\n"))
        await stream.send_all(wire(delta("done", "stop"), DONE) + END)

    outcome = await on_socket(handle, request(GPT))
    assert outcome.text == "done"


@both
@pytest.mark.virtual_time
async def test_finished_stream_left_open(model: str) -> None:
    """A finished answer is returned within 5 s where the server keeps the stream open, at once after its last event."""
    began = trio.current_time()
    await on_socket(streaming(holding, *FIRST[model], *FINISH[model]), request(model))
    assert 5 <= trio.current_time() - began < 6
    began = trio.current_time()
    outcome = await on_socket(streaming(holding, *FIRST[model], *FINISH[model], *CLOSE[model]), request(model))
    assert trio.current_time() - began < 1
    assert outcome.text == "Hello"


@both
async def test_connection_refused(model: str) -> None:
    """A server that is not there is a connection error, worth another try, whose message names host and port."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: connecting is refused
        host = f"127.0.0.1:{reserved.getsockname()[1]}"
        async with open_providers(environ(f"http://{host}")) as providers:
            choice = providers.resolve(model, None)
            with pytest.raises(ProviderError, match=host) as caught:
                await choice.provider.complete(request(model), lambda _: None)
    assert (caught.value.cause, caught.value.retryable) == ("connection", True)


@both
async def test_refusal_that_breaks_off(model: str) -> None:
    """A refusal whose body breaks off counts by its status."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(b"HTTP/1.1 429 Wait\r\nretry-after: 3\r\ncontent-length: 99\r\n\r\n{")
        await stream.aclose()

    with pytest.raises(ProviderError) as caught:
        await on_socket(handle, request(model))
    assert (caught.value.cause, caught.value.retry_after) == ("rate_limited", 3.0)


@both
@pytest.mark.parametrize(
    ("kind", "cause", "retryable"),
    [
        (httpx.ConnectTimeout, "connection", True),
        (httpx.ProxyError, "connection", True),
        (httpx.DecodingError, "bad_response", True),
        (httpx.LocalProtocolError, "bad_address", False),
    ],
)
async def test_failures_of_the_client(
    model: str,
    kind: type[httpx.RequestError],
    cause: str,
    retryable: bool,  # noqa: FBT001 - a column
) -> None:
    """An error of the HTTP client itself has a cause of its own, and says truly whether to try again."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise kind("no luck")

    with pytest.raises(ProviderError) as caught:
        await over(fail, request(model))
    assert (caught.value.cause, caught.value.retryable) == (cause, retryable)


async def test_certificate() -> None:
    """A certificate that cannot be verified will not get better by trying again."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    with pytest.raises(ProviderError, match="certificate") as caught:
        await over(fail, request(GPT))
    assert not caught.value.retryable


@both
async def test_server_hangs_up_before_the_answer(model: str) -> None:
    """A server that closes instead of answering is a connection error, worth another try."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.aclose()

    with pytest.raises(ProviderError) as caught:
        await on_socket(handle, request(model))
    assert (caught.value.cause, caught.value.retryable) == ("connection", True)


@both
@pytest.mark.parametrize("head", [b"", HEAD])
async def test_cancelling_closes_the_stream(model: str, head: bytes) -> None:
    """Cancelling a call closes its connection at once: the server sees it, before and within the answer."""
    arrived, closed = trio.Event(), trio.Event()

    async def handle(_: Request, stream: Stream) -> None:
        if head:
            await stream.send_all(head + wire(*FIRST[model]))
        arrived.set()
        assert await stream.receive_some() == b""
        closed.set()

    async with serve(handle) as url, open_providers(environ(url)) as providers, trio.open_nursery() as nursery:
        choice = providers.resolve(model, None)
        said = trio.Event()
        nursery.start_soon(choice.provider.complete, request(model), lambda _: said.set())
        await (said if head else arrived).wait()
        nursery.cancel_scope.cancel()
        with trio.fail_after(AT_ONCE), trio.CancelScope(shield=True):
            await closed.wait()


@both
async def test_connection_is_used_again(model: str) -> None:
    """Calls one after the other share a connection: a finished stream is read to its end."""
    connections: list[object] = []

    async def handle(_: Request, stream: Stream) -> None:
        connections.append(stream.socket.getpeername())
        await stream.send_all(HEAD + wire(*FIRST[model], *FINISH[model], *CLOSE[model]) + END)

    async with serve(handle) as url, open_providers(environ(url)) as providers:
        choice = providers.resolve(model, None)
        for _call in range(3):
            await choice.provider.complete(request(model), lambda _: None)
    assert len(connections) == 3
    assert len(set(connections)) == 1


async def test_more_calls_than_a_pool_would_hold() -> None:
    """Two hundred calls are answered at once: none waits for another's connection."""
    waiting = 0
    everybody = trio.Event()

    async def handle(_: Request, stream: Stream) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 200:
            everybody.set()
        await everybody.wait()
        await stream.send_all(HEAD + wire(delta("hi", "stop"), DONE) + END)

    outcomes: list[Outcome] = []
    async with serve(handle) as url, open_providers(environ(url)) as providers:
        choice = providers.resolve(GPT, None)

        async def one() -> None:
            outcomes.append(Outcome([], await choice.provider.complete(request(GPT), lambda _: None)))

        async with trio.open_nursery() as nursery:
            for _call in range(200):
                nursery.start_soon(one)
    assert [outcome.reply.message.text for outcome in outcomes] == ["hi"] * 200


async def test_proxy_is_not_asked_for_a_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on this machine is called directly, also where the environment names a proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    outcome = await on_socket(streaming(ending, *FIRST[GPT], *FINISH[GPT]), request(GPT))
    assert outcome.text == "Hello"


async def test_emit_that_raises() -> None:
    """An error of the receiver of the pieces ends the call and reaches its caller as it is."""

    def refuse(_: Emitted) -> None:
        raise LookupError("no room")

    async with serve(streaming(holding, *FIRST[GPT])) as url, open_providers(environ(url)) as providers:
        choice = providers.resolve(GPT, None)
        with pytest.raises(LookupError, match="no room"):
            await choice.provider.complete(request(GPT), refuse)
