"""Vectors over HTTP: what is sent, what is tried again, what is refused."""

import gzip

import attrs
import pytest
import trio

from tests.transport.providers.byte_server import HEAD, Handler, Request, chunk, serve, status
from tests.transport.providers.embedding_server import Server, vector
from warren.base.errors import InvalidParamsError, ProviderError
from warren.settings.config import RetryPolicy
from warren.transport.embedders import BUILT_IN, open_embedder
from warren.transport.providers.embeddings import BATCH, LONGEST, RemoteEmbedder, open_remote

KEY = "k-123"
MIB = 1024 * 1024
QUICK = RetryPolicy(max_attempts=3, initial_delay=0.001, max_retry_after=0.001)
BUSY = status(429, {"error": {"message": "slow down"}}, retry_after="0")


async def _three() -> int:
    return 3


async def vectors(server: Server, texts: list[str]) -> list[list[float]]:
    """Return the vectors that a server makes of texts, its faults put off until its length is learned."""
    faults, server.faults = server.faults, []
    async with serve(server.handle) as url, open_remote("mini", {"OPENAI_BASE_URL": url}, retry=QUICK) as embedder:
        server.faults = faults
        return await embedder.embed(texts)


async def test_texts_become_vectors_in_order() -> None:
    """Texts go out in batches with the key, and vectors come back in the texts' order whatever the server's is."""
    server, texts = Server(), [f"{number}{'x' * number}" for number in range(1, BATCH * 2 + 3)]
    async with serve(server.handle) as url:
        environ = {"OPENAI_BASE_URL": f"{url}/v1/", "OPENAI_API_KEY": KEY}
        async with open_embedder("openai:org/mini", environ) as embedder:
            assert isinstance(embedder, RemoteEmbedder)
            assert (embedder.name, embedder.dimensions) == ("openai:org/mini", 3)
            assert await embedder.embed(texts) == [vector(text) for text in texts]
    assert [len(request.body["input"]) for request in server.seen] == [1, BATCH, BATCH, 2]
    assert {request.path for request in server.seen} == {"/v1/embeddings"}
    assert {request.headers["authorization"] for request in server.seen} == {f"Bearer {KEY}"}
    assert {request.body["model"] for request in server.seen} == {"org/mini"}


async def test_a_long_text_is_cut() -> None:
    """The model gets the beginning of a text that would not fit its window."""
    assert await vectors(Server(), ["x" * (LONGEST + 1)]) == [vector("x" * LONGEST)]


WORDINGS = [
    (400, "This model's maximum context length is 512 tokens. However, you requested 613 tokens in the input."),
    (413, "Input validation error: `inputs` must have less than 512 tokens. Given: 785"),
    (500, "input (2055 tokens) is too large to process. increase the physical batch size (current batch size: 512)"),
    (500, "the input length exceeds the context length"),
    (422, "Input text exceeds maximum length of 512 tokens"),
    (400, "Invalid 'input[0]': maximum input length is 512 tokens."),
    (400, "no such text"),
]


@attrs.define
class Small(Server):
    """A server that refuses a text of more than 1,100 characters, or more than `together` of all."""

    refusal: bytes = status(400, {"error": {"message": "the input length exceeds the context length"}})
    together: int = MIB
    refused: int = 0

    async def handle(self, request: Request, stream: trio.SocketStream) -> None:
        sizes = [len(text) for text in request.body["input"]]
        if max(sizes) > 1_100 or sum(sizes) > self.together:
            self.refused += 1
            await stream.send_all(self.refusal)
        else:
            await super().handle(request, stream)


@pytest.mark.parametrize(("code", "wording"), WORDINGS)
async def test_a_text_over_the_window_is_embedded_by_its_parts(code: int, wording: str) -> None:
    """What a server refuses as too long is halved until it fits; its vector is the mean of those of its parts."""
    refusal, long = status(code, {"error": {"message": wording}}), "long words " * 300
    found = await vectors(Small(refusal=refusal), ["a", long, "bb"])
    assert (found[0], found[2], len(found[1])) == (vector("a"), vector("bb"), 3)
    same = Small(refusal=refusal, answer=lambda texts: {"data": [{"embedding": [3.0, 4.0, 0.0]} for _ in texts]})
    (mean,) = await vectors(same, [long])
    assert mean == pytest.approx([0.6, 0.8, 0.0])


async def test_a_learned_window_costs_no_further_refusal() -> None:
    """Once a refusal has told how much a server takes, later texts are split before they are sent."""
    server = Small()
    async with serve(server.handle) as url, open_remote("mini", {"OPENAI_BASE_URL": url}, retry=QUICK) as embedder:
        await embedder.embed(["long words " * 300])
        refused = server.refused
        assert len(await embedder.embed(["long words " * 300] * 70)) == 70
    assert (refused > 0, server.refused) == (True, refused)
    assert max(len(request.body["input"]) for request in server.seen) > 1


async def test_a_text_that_is_refused_for_its_words_teaches_nothing() -> None:
    """If its halves are refused as well, later texts go out whole."""

    @attrs.define
    class Strict(Server):
        async def handle(self, request: Request, stream: trio.SocketStream) -> None:
            if any("odd" in text for text in request.body["input"]):
                await stream.send_all(status(400, {"error": {"message": "Invalid input: forbidden characters"}}))
            else:
                await super().handle(request, stream)

    server, long = Strict(), "good words " * 400
    async with serve(server.handle) as url, open_remote("mini", {"OPENAI_BASE_URL": url}, retry=QUICK) as embedder:
        with pytest.raises(ProviderError):
            await embedder.embed(["odd words " * 400])
        assert await embedder.embed([long]) == [vector(long.strip())]


async def test_a_batch_that_is_too_large_is_halved() -> None:
    """A server that bounds all texts of a request together gets fewer of them."""
    texts = [f"{number}{'x' * 90}" for number in range(30)]
    refusal = status(400, {"error": {"message": "Requested 690 tokens, max 250 tokens per request"}})
    assert await vectors(Small(refusal=refusal, together=1_000), texts) == [vector(text) for text in texts]


@pytest.mark.parametrize("fault", [BUSY, status(500), status(503, {"error": "busy"}), None])
async def test_what_passes_is_tried_again(fault: bytes | None) -> None:
    """Rate limits, faults of the server and broken connections are tried again, as often as the policy has it."""
    server = Server([fault, fault])
    assert await vectors(server, ["a"]) == [vector("a")]
    assert len(server.seen) == 4
    with pytest.raises(ProviderError) as caught:
        await vectors(Server([fault] * 3), ["a"])
    assert caught.value.retryable


async def test_a_wait_beyond_the_bound_fails_at_once() -> None:
    """A server that asks for a longer wait than the policy allows is not asked again; the error has its wish."""
    server = Server([status(429, {"error": {"message": "slow down"}}, retry_after="3600")])
    with pytest.raises(ProviderError) as caught:
        await vectors(server, ["a"])
    assert caught.value.details["retry_after"] == 3600


@pytest.mark.parametrize(("code", "cause"), [(401, "unauthorized"), (404, "not_found"), (400, "bad_request")])
async def test_what_stays_is_not_tried_again(code: int, cause: str) -> None:
    """A refusal that would come again ends the call at once."""
    server = Server([status(code, {"error": {"message": "no"}})])
    with pytest.raises(ProviderError) as caught:
        await vectors(server, ["a"])
    assert (caught.value.cause, caught.value.retryable, len(server.seen)) == (cause, False, 2)


BAD: list[object] = [
    {},
    {"data": []},
    {"data": [{"index": 0, "embedding": [1, 2, 3]}] * 2},
    {"data": [{"index": 1, "embedding": [1, 2, 3]}]},
    {"data": [{"index": 0, "embedding": []}]},
    {"data": [{"index": 0, "embedding": "AAAA"}]},
    {"data": [{"index": 0, "embedding": [1, None, 3]}]},
    {"data": [{"index": [], "embedding": [1, 2, 3]}]},
    {"data": [{"index": 0, "embedding": [1, 2]}]},
]


@pytest.mark.parametrize("said", BAD)
async def test_a_wrong_answer_is_refused(said: object) -> None:
    """An answer without one vector a text, of numbers and of the known length, is none."""
    with pytest.raises(ProviderError) as caught:
        await vectors(Server([status(200, said)]), ["a"])
    assert caught.value.cause == "bad_response"
    assert "mini" in caught.value.message


async def test_rows_without_an_index_are_in_order() -> None:
    """Servers that leave the index out answer in the order of the texts."""
    server = Server(answer=lambda texts: {"data": [{"embedding": vector(text)} for text in texts]})
    assert await vectors(server, ["a", "bb"]) == [vector("a"), vector("bb")]


async def test_a_server_that_is_not_there() -> None:
    """A request without an answer is a ProviderError, and worth another try later."""
    async with serve(Server().handle) as url:
        gone = url
    with pytest.raises(ProviderError) as caught:
        async with open_remote("mini", {"OPENAI_BASE_URL": gone}, retry=QUICK):
            pass
    assert (caught.value.cause, caught.value.retryable) == ("connection", True)


async def test_a_server_that_is_away_at_first() -> None:
    """If the length of the vectors is known the embedder is there all the same, and works once the server does."""
    server = Server(faults=[BUSY] * QUICK.max_attempts)
    async with (
        serve(server.handle) as url,
        open_remote("mini", {"OPENAI_BASE_URL": url}, retry=QUICK, known=_three) as embedder,
    ):
        assert embedder.dimensions == 3
        server.faults = [BUSY] * QUICK.max_attempts
        with pytest.raises(ProviderError):
            await embedder.embed(["a"])
        assert await embedder.embed(["a"]) == [vector("a")]


async def test_a_server_that_refuses_the_key_at_first() -> None:
    """An error that no waiting mends is raised at once, whatever is known."""
    server = Server(faults=[status(401, {"error": {"message": "who are you?"}})])
    async with serve(server.handle) as url:
        with pytest.raises(ProviderError) as caught:
            async with open_remote("mini", {"OPENAI_BASE_URL": url}, retry=QUICK, known=_three):
                pass
    assert caught.value.cause == "unauthorized"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [({}, "OPENAI_API_KEY is not set"), ({"OPENAI_BASE_URL": "nowhere"}, "OPENAI_BASE_URL is not")],
)
async def test_what_is_missing_in_the_environment(environ: dict[str, str], problem: str) -> None:
    """Without a key or an address nothing is called, and the error names the variable."""
    with pytest.raises(ProviderError, match=problem):
        async with open_embedder("openai:mini", environ):
            pass


async def test_names_of_embedders() -> None:
    """The memory's own embedders need none from here, and what is no name is refused by its field."""
    for name in (None, *BUILT_IN):
        async with open_embedder(name, {}) as embedder:
            assert embedder is None
    for name in ("openai:", "openai", "mini", ""):
        with pytest.raises(InvalidParamsError) as caught:
            async with open_embedder(name, {}):
                pass
        assert caught.value.path == "$.embedder"


async def failure(faulty: Handler) -> ProviderError:
    """Return how asking for the vector of one text fails at a server that goes wrong after its first answer."""
    good, seen = Server(), list[Request]()

    async def handle(request: Request, stream: trio.SocketStream) -> None:
        seen.append(request)
        await (good.handle if len(seen) == 1 else faulty)(request, stream)

    async with serve(handle) as url, open_remote("mini", {"OPENAI_BASE_URL": url}, retry=QUICK) as embedder:
        with pytest.raises(ProviderError) as caught:
            await embedder.embed(["a"])
    return caught.value


async def endless(_: Request, stream: trio.SocketStream) -> None:
    """Answer with one vector that has no end."""
    await stream.send_all(HEAD + chunk(b'{"data": [{"embedding": [1'))
    while True:
        await stream.send_all(chunk(b",1" * 512))


async def bomb(_: Request, stream: trio.SocketStream) -> None:
    """Answer with a small body that inflates to a large one."""
    body = gzip.compress(b'{"data": [{"embedding": [' + b"1," * MIB + b"1]}]}")
    assert len(body) < 16 * 1024
    await stream.send_all(f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n".encode())
    await stream.send_all(body)


@pytest.mark.parametrize("faulty", [endless, bomb])
async def test_an_answer_has_a_bound(faulty: Handler) -> None:
    """The answer to a text is bounded, decompressed, and not asked for again."""
    error = await failure(faulty)
    assert (error.cause, error.retryable) == ("too_long", False)
    assert "mini" in error.message


@pytest.mark.virtual_time
async def test_an_answer_has_an_end() -> None:
    """A server that sends its answer byte by byte for ever is given up."""

    async def drip(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(HEAD)
        while True:
            await trio.sleep(30)
            await stream.send_all(chunk(b" "))

    error = await failure(drip)
    assert (error.cause, error.retryable) == ("timeout", True)
