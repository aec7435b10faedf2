"""How much a model's server may send, and how long it may go on without any of its answer."""

import zlib
from collections.abc import Awaitable, Callable

import pytest
import trio

from tests.transport.providers.byte_server import END, HEAD, Handler, Request, chunk, event, serve, status
from tests.transport.providers.calls import CLAUDE, GEMINI, GPT, KEY, environ, request
from tests.transport.providers.dialects import DONE, delta, more, opened, start
from tests.transport.providers.dialects import call as call_of
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.conversation.messages import MAX_BLOCKS
from warren.models.model import Emitted, ModelReply
from warren.settings.config import Config, Limits, RetryPolicy
from warren.transport.embed import open_supervisor
from warren.transport.providers import Bounds, open_providers

KIB, MIB = 1024, 1024 * 1024
SMALL = Bounds(size=6_400 * KIB)
Stream = trio.SocketStream


async def call(handler: Handler, bounds: Bounds, model: str = GPT) -> ModelReply:
    """Call a model on a server of its own, within bounds."""
    pieces: list[Emitted] = []
    async with serve(handler) as url, open_providers(environ(url), bounds=bounds) as providers:
        return await providers.resolve(model, None).provider.complete(request(model), pieces.append)


async def failure(handler: Handler, bounds: Bounds = SMALL, model: str = GPT) -> ProviderError:
    """Return how a call fails."""
    with pytest.raises(ProviderError) as caught:
        await call(handler, bounds, model)
    return caught.value


def always(data: bytes) -> Handler:
    """Return a handler that answers every request with these bytes, as far as anybody takes them."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(data)

    return handle


def plain(body: bytes, **headers: str) -> bytes:
    """Return an answer in one piece."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{named}\r\n"
    return head.encode() + body


def said(text: str) -> bytes:
    """Return the JSON of an answer in one piece."""
    return codec.encode({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


def gzipped(data: bytes) -> bytes:
    """Return data as gzip has it."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return deflate.compress(data) + deflate.flush()


async def test_an_answer_in_one_piece_is_bounded() -> None:
    """An answer above the bound fails the call for good; one below it is taken."""
    reply = await call(always(plain(said("x" * 90 * KIB))), SMALL)
    assert len(reply.message.text) == 90 * KIB
    error = await failure(always(plain(said("x" * 110 * KIB))))
    assert (error.cause, error.retryable) == ("too_long", False)
    assert "limits.max_answer" in error.message


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_decompressed_bytes_count(encoding: str) -> None:
    """A small body that inflates to a huge one is given up at the bound; a plain compressed answer is read."""
    compress = gzipped if encoding == "gzip" else zlib.compress
    reply = await call(always(plain(compress(said("hello")), content_encoding=encoding)), SMALL)
    assert reply.message.text == "hello"
    bomb = compress(said("x" * 40 * MIB))
    assert len(bomb) < 100 * KIB
    error = await failure(always(plain(bomb, content_encoding=encoding)))
    assert error.cause == "too_long"


@pytest.mark.parametrize(("encoding", "body"), [("gzip", b"no gzip"), ("br", b"x")])
async def test_a_body_that_cannot_be_decompressed(encoding: str, body: bytes) -> None:
    """A body that does not decompress, or is in an encoding that was not asked for, is a bad response."""
    error = await failure(always(plain(body, content_encoding=encoding)))
    assert error.cause == "bad_response"


async def test_a_stream_is_bounded() -> None:
    """A stream that never ends is given up when it has sent too much, whatever it sends."""
    for data in (delta("x" * KIB), b": " + b"x" * KIB + b"\n\n"):
        part = chunk(event(data) if isinstance(data, dict) else data)

        async def handle(_: Request, stream: Stream, part: bytes = part) -> None:
            await stream.send_all(HEAD)
            while True:
                await stream.send_all(part)

        error = await failure(handle)
        assert error.cause == "too_long"


async def test_one_event_is_bounded() -> None:
    """An event is parsed at once, so that it may not be as long as a whole stream."""
    error = await failure(always(HEAD + chunk(event(delta("x" * 110 * KIB))) + chunk(event(DONE)) + END))
    assert error.cause == "too_long"
    reply = await call(always(HEAD + chunk(event(delta("x" * 90 * KIB, "stop"))) + chunk(event(DONE)) + END), SMALL)
    assert len(reply.message.text) == 90 * KIB


async def test_only_the_beginning_of_a_refusal_is_read() -> None:
    """An error status with an endless body is an error as any other."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(b"HTTP/1.1 400 No\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await stream.send_all(chunk(b"no, " * KIB))

    error = await failure(handle)
    assert (error.cause, error.details["status"]) == ("bad_request", 400)
    assert len(error.message) < KIB


@pytest.mark.virtual_time
async def test_a_refusal_without_words_is_not_waited_for() -> None:
    """The status says enough: a server that sends it, and then nothing, or very little, holds up nobody."""

    async def drip(_: Request, stream: Stream) -> None:
        await stream.send_all(b"HTTP/1.1 401 No\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
        for _index in range(1000):
            await stream.send_all(b" ")
            await trio.sleep(1)

    began = trio.current_time()
    assert (await failure(drip, Bounds())).cause == "unauthorized"
    assert trio.current_time() - began < 10


@pytest.mark.virtual_time
async def test_a_list_of_models_is_not_waited_for_without_end() -> None:
    """A server that sends a byte now and then cannot hold up whoever asks for its models."""

    async def drip(_: Request, stream: Stream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
        while True:
            await stream.send_all(b" ")
            await trio.sleep(1)

    async with serve(drip) as url, open_providers(environ(url), bounds=Bounds(stall=30)) as providers:
        with pytest.raises(ProviderError, match="has not listed its models within 30 s"), trio.fail_after(100):
            await providers.resolve(GPT, None).provider.listed()  # type: ignore[attr-defined] # a provider with a list


@pytest.mark.parametrize("model", [GPT, CLAUDE])
@pytest.mark.virtual_time
async def test_signs_of_life_are_no_answer(model: str) -> None:
    """A server that sends nothing but comments and pings is given up after a while, in its stream or before it."""
    signs: dict[str, object] = {"type": "ping"} if model == CLAUDE else {"choices": [{"delta": {}}]}

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD)
        while True:
            await trio.sleep(50)
            await stream.send_all(chunk(b": still here\n\n") + chunk(event(signs)))

    began = trio.current_time()
    error = await failure(handle, Bounds(stall=600), model)
    assert (error.cause, error.retryable) == ("timeout", True)
    assert trio.current_time() - began == pytest.approx(600, abs=1)


@pytest.mark.virtual_time
async def test_an_answer_that_goes_on_is_waited_for() -> None:
    """A slow answer takes as long as it takes, as long as some of it comes within the bound."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD)
        for number in range(5):
            await trio.sleep(200)
            await stream.send_all(chunk(event(delta(str(number)))))
        await stream.send_all(chunk(event(delta(None, "stop"))) + chunk(event(DONE)) + END)

    assert (await call(handle, Bounds(stall=300))).message.text == "01234"


async def watched(handler: Handler) -> tuple[ModelReply, int]:
    """Return the reply of a call, and the most threads that were at work meanwhile."""
    threads: list[int] = []
    replies: list[ModelReply] = []

    async def watch() -> None:
        while not replies:
            threads.append(trio.to_thread.current_default_thread_limiter().borrowed_tokens)
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        replies.append(await call(handler, Bounds()))
    return replies[0], max(threads)


async def test_a_large_answer_is_parsed_beside_the_loop() -> None:
    """Other tasks run while a large answer is parsed."""
    calls = ({"index": n, "id": f"c{n}", "function": {"name": "x", "arguments": "{}"}} for n in range(10_000))
    body = codec.encode({"choices": [{"message": {"tool_calls": list(calls)}, "finish_reason": "stop"}]})
    reply, threads = await watched(always(plain(body)))
    assert (len(reply.message.tool_calls), threads) == (10_000, 1)


async def test_a_large_event_at_the_end_is_looked_at_beside_the_loop() -> None:
    """Other tasks run while the last event of a stream turns out to be cut, and is not taken."""
    cut = b'data: {"choices": [{"delta": {"content": "' + rb"\n" * MIB
    reply, threads = await watched(always(HEAD + chunk(event(delta("hello", "stop"))) + chunk(cut) + END))
    assert (reply.message.text, threads) == ("hello", 1)


CALLED = {
    GPT: [call_of(number, "{}", id=f"c{number}", name="f") for number in range(50_000)],
    CLAUDE: [
        start(input_tokens=9),
        *(opened(number, "tool_use", id=f"c{number}", name="f") for number in range(50_000)),
    ],
}


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_an_answer_of_too_many_blocks_is_read_no_further(model: str) -> None:
    """The reply has more calls than are kept, so that the turn can tell; its tokens are charged by an estimate."""
    left: list[bool] = []

    async def go_on(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD)
        try:
            for each in CALLED[model]:
                await stream.send_all(chunk(event(each)))
        except trio.BrokenResourceError:
            left.append(True)

    reply = await call(go_on, Bounds(), model)
    assert MAX_BLOCKS < len(reply.message.tool_calls) < 10_000
    assert (reply.usage.estimated, left) == (True, [True])


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_the_arguments_of_a_call_are_bounded(model: str) -> None:
    """An answer whose arguments have no end fails for good, long before its stream is at its own bound."""
    begun = {GPT: call_of(0, "[", id="c", name="f"), CLAUDE: opened(0, "tool_use", id="c", name="f")}[model]
    more_of = {GPT: call_of(0, "[" * 50 * KIB), CLAUDE: more(0, partial_json="[" * 50 * KIB)}[model]

    async def go_on(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD + chunk(event(begun)))
        for _number in range(20):
            await stream.send_all(chunk(event(more_of)))
        await trio.sleep_forever()

    error = await failure(go_on, SMALL, model)
    assert (error.cause, error.retryable) == ("too_long", False)
    assert "limits.max_answer" in error.message


async def test_the_bounds_are_settings() -> None:
    """`limits.max_answer` and `limits.model_stall` of a runtime hold for its models."""
    body = plain(said("x" * 10 * KIB))

    async def turn(handler: Callable[[Request, Stream], Awaitable[None]], limits: Limits) -> ProviderError:
        async with serve(handler) as url:
            config = Config(model="local", limits=limits, retry=RetryPolicy(max_attempts=1))
            settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
            async with open_supervisor(config, environ=settings) as service:
                with pytest.raises(ProviderError) as caught:
                    await service.create_session("hello")
                return caught.value

    assert (await turn(always(body), Limits(max_answer=8 * KIB))).cause == "too_long"

    async def stop_sending(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD)
        await trio.sleep_forever()

    assert "has sent nothing of its answer for 0.2 s" in (await turn(stop_sending, Limits(model_stall=0.2))).message


async def test_the_status_of_a_refusal_survives() -> None:
    """A refusal in full is quoted as before."""
    error = await failure(always(status(400, {"error": {"message": "bad prompt"}})))
    assert error.message.endswith("answered 400: bad prompt")


@pytest.mark.parametrize("model", [GPT, GEMINI])
@pytest.mark.virtual_time
async def test_a_stop_reason_in_each_part_ends_nothing(model: str) -> None:
    """An answer goes on as long as its text does, and ends soon behind its last part."""

    async def handle(_: Request, stream: Stream) -> None:
        await stream.send_all(HEAD)
        for number in map(str, range(5)):
            candidate = {"content": {"parts": [{"text": number}]}, "finishReason": "STOP"}
            await stream.send_all(
                chunk(event({"candidates": [candidate]} if model == GEMINI else delta(number, "stop")))
            )
            await trio.sleep(3)
        await trio.sleep_forever()

    began = trio.current_time()
    assert (await call(handle, Bounds(), model)).message.text == "01234"
    assert trio.current_time() - began == pytest.approx(17, abs=1)
