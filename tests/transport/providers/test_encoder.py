"""The bytes of requests: encoded once, the same ones again with each step, and sent in pieces."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import attrs
import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.domain import strategies
from tests.support.runtime import open_runtime
from tests.support.steps import Calls
from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import CLAUDE, GPT, SSE, environ, provider_of, servers
from tests.transport.providers.dialects import DONE, STOP, call, delta, more, opened, start, stopped, whole
from tests.transport.providers.http.servers import serving
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.messages import AssistantMessage, Message, TextBlock, UserMessage
from warren.conversation.records import Span
from warren.conversation.transcript import Continued, Transcript
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Provider
from warren.models.tools import tool
from warren.transport.providers import open_providers
from warren.transport.providers.anthropic import MessagesContext
from warren.transport.providers.encoded import PIECE, Encoded
from warren.transport.providers.encoder import AT_ONCE, Encoder
from warren.transport.providers.http.client import new_client
from warren.transport.providers.openai import ChatContext
from warren.transport.providers.pace import RequestPace
from warren.transport.providers.remote import Pieces

contexts = pytest.mark.parametrize("new", [ChatContext, MessagesContext])
models = pytest.mark.parametrize("model", [GPT, CLAUDE])
messages = st.lists(strategies.of(Message), max_size=6)
CHANGES = ["append", "truncate", "leave out", "compact", "ask"]


def encoder_of(new: Callable[[str, str], Encoded]) -> Encoder:
    """Return an encoder for a provider."""
    return Encoder(partial(new, "p"), RequestPace())


def body(context: Encoded) -> bytes:
    """Return a body with the messages of a context."""
    return whole(context.between({"model": "m"}, {}))


def anew(new: Callable[[str, str], Encoded], told: Sequence[Message]) -> bytes:
    """Return the body with messages that nobody has encoded before."""
    context = new("p", "m")
    for message in told:
        context.add(message)
    return body(context)


def drawn(transcript: Transcript, change: str, data: st.DataObject) -> None:
    """Change a transcript in one of the ways in which a session does."""
    first = data.draw(st.integers(transcript.head, transcript.end))
    match change:
        case "append":
            for message in data.draw(messages):
                transcript.append(message)
        case "truncate":
            transcript.truncate(first)
        case "leave out":
            transcript.leave_out([Span(first, data.draw(st.integers(first, transcript.end)))])
        case "compact":
            transcript.move_head(first, map(codec.encode, data.draw(messages)))


@contexts
@given(data=st.data())
async def test_the_kept_bytes_are_those_of_the_context(new: type[Encoded], data: st.DataObject) -> None:
    """However a transcript changes between two requests, a request has the context as it is then."""
    encoder, transcript = encoder_of(new), Transcript(map(codec.encode, data.draw(messages)))
    for change in data.draw(st.lists(st.sampled_from(CHANGES), max_size=9)):
        if change == "ask":
            asked = data.draw(messages)
            assert body(await encoder.encoded(Continued(transcript, asked), "m")) == anew(new, [*transcript, *asked])
        drawn(transcript, change, data)
        context = await encoder.encoded(transcript, "m")
        assert body(context) == anew(new, list(transcript))
        answers = (each for each in transcript if isinstance(each, AssistantMessage))
        assert context.calls == {use.id for each in answers for use in each.tool_calls}


@contexts
def test_many_small_messages(new: type[Encoded]) -> None:
    """The bytes are those of a new context, also if many messages come between two requests."""
    context = new("p", "m")
    told: list[Message] = []
    for round_ in range(3):
        for number in range(100 * round_):
            told += [UserMessage(f"prompt {number}"), AssistantMessage((TextBlock(f"answer {number}"),))]
            context.add(told[-2])
            context.add(told[-1])
        aside = context.copy()
        assert body(context) == anew(new, told)
        aside.add(UserMessage("aside"))
        assert body(aside) == anew(new, [*told, UserMessage("aside")])
        assert body(context) == anew(new, told)


@contexts
@given(told=messages)
async def test_a_list_of_messages_is_encoded_as_a_transcript_is(new: type[Encoded], told: list[Message]) -> None:
    """Hosts and compactions give plain lists; they make the same bytes."""
    transcript = Transcript(map(codec.encode, told))
    assert body(await encoder_of(new).encoded(told, "m")) == body(await encoder_of(new).encoded(transcript, "m"))


@contexts
async def test_another_protocol_takes_the_place(new: type[Encoded]) -> None:
    """A session that goes from one protocol to the other and back is sent whole each time."""
    transcript = Transcript()
    for number in range(6):
        transcript.append(UserMessage(f"prompt {number}"))
        transcript.append(AssistantMessage((TextBlock(f"answer {number}"),)))
        for kind in (new, ChatContext, MessagesContext):
            assert body(await encoder_of(kind).encoded(transcript, "m")) == anew(kind, list(transcript))


@contexts
async def test_an_encoding_that_was_cancelled(new: type[Encoded]) -> None:
    """A request that is cancelled while its context is encoded leaves nothing half done to the next one."""
    transcript = Transcript(codec.encode(UserMessage(f"prompt {number}")) for number in range(5 * AT_ONCE))
    for passes in range(1, 5):
        encoder, transcript.form = encoder_of(new), None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(encoder.encoded, transcript, "m")
            for _pass in range(passes):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        assert body(await encoder.encoded(transcript, "m")) == anew(new, list(transcript))


@attrs.define(eq=False)
class Passes(trio.abc.Instrument):
    """Notes the most things that were done in one pass of the loop.

    Attributes:
        most: the most in one pass.
        now: those of this pass.
        count: passes so far.
    """

    most: int = 0
    now: int = 0
    count: int = 0

    def before_io_wait(self, timeout: float) -> None:
        """Begin with the next pass."""
        del timeout
        self.most, self.now, self.count = max(self.most, self.now), 0, self.count + 1


async def test_long_contexts_are_encoded_one_part_a_pass() -> None:
    """However many long sessions begin at once, a pass of the loop encodes a part of one of them."""
    passes = Passes()

    class Counted(ChatContext):
        def add(self, message: Message) -> None:
            passes.now += 1
            super().add(message)

    encoder = encoder_of(Counted)
    rows = [codec.encode(UserMessage(f"prompt {number}")) for number in range(10 * AT_ONCE)]
    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for _session in range(10):
            nursery.start_soon(encoder.encoded, Transcript(rows), "m")
    assert passes.most == AT_ONCE


@pytest.mark.parametrize("bodies", [1, 10])
async def test_large_bodies_go_out_one_piece_a_pass(bodies: int) -> None:
    """However many large bodies are sent at once, a pass of the loop sends a piece of one; a single one never waits."""
    passes, pace = Passes(), RequestPace()
    got: list[bytes] = []

    async def send() -> None:
        async for piece in Pieces([b"head", *map(str.encode, "abcdef")], pace):
            got.append(piece)
            if piece != b"head":
                passes.now += 1
                await trio.lowlevel.checkpoint()

    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for _body in range(bodies):
            nursery.start_soon(send)
    trio.lowlevel.remove_instrument(passes)
    assert sorted(got) == sorted([b"head", *map(str.encode, "abcdef")] * bodies)
    assert passes.most == 1
    assert bodies > 1 or passes.count < 10


async def test_a_connection_sends_one_large_body_a_pass() -> None:
    """However many large requests go out at once, a pass of the loop hands one of them to the kernel."""
    passes, pace = Passes(), RequestPace()

    class Counted(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            *others, last = super().__iter__()
            yield from others
            passes.now += 1
            yield last

    async def post() -> None:
        body = Counted([b"head", *[b"x" * PIECE] * 3])
        headers = {"Content-Length": str(4 + 3 * PIECE)}
        await client.post(server.url, content=Pieces(body, pace), headers=headers)

    async with serving() as server, new_client() as client:
        async with trio.open_nursery() as nursery:
            trio.lowlevel.add_instrument(passes)
            for _request in range(10):
                nursery.start_soon(post)
        trio.lowlevel.remove_instrument(passes)
    assert {len(each.body) for each in server.arrived} == {4 + 3 * PIECE}
    assert passes.most == 1


async def test_a_body_that_fails_holds_up_nobody() -> None:
    """A body that is left half way, or cancelled while it waits, lets the others go on."""
    pace = RequestPace()

    def body() -> AsyncIterator[bytes]:
        return aiter(Pieces([b"head", b"a", b"b"], pace))

    left = body()
    assert [await anext(left), await anext(left)] == [b"head", b"a"]
    with trio.CancelScope() as scope:
        scope.cancel()
        waiting = body()
        await anext(waiting)
        await anext(waiting)
    assert scope.cancelled_caught
    assert [piece async for piece in body()] == [b"head", b"a", b"b"]


@attrs.frozen
class Server(httpx.AsyncBaseTransport):
    """A model's server of both protocols that calls the tool once for each prompt, and keeps the requests' pieces."""

    got: list[list[bytes]] = attrs.field(factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the requests."""
        return [b"".join(pieces) for pieces in self.got]

    async def handle_async_request(self, asked: httpx.Request) -> httpx.Response:
        """Answer a request."""
        assert isinstance(asked.stream, httpx.AsyncByteStream)
        pieces = [piece async for piece in asked.stream]
        self.got.append(pieces)
        assert asked.headers["content-length"] == str(sum(map(len, pieces)))
        assert "transfer-encoding" not in asked.headers
        return httpx.Response(200, headers=SSE, content=events(*self._answer(asked.url.path)))

    def _answer(self, path: str) -> Iterator[object]:
        asked, number = codec.parse(self.bodies[-1]), len(self.got)
        last = asked["messages"][-1]
        if path.endswith("/chat/completions"):
            calls = "tools" in asked and last["role"] == "user"
            yield call(0, "{}", id=f"call_{number}", name="weather") if calls else delta(f"answer {number}")
            yield delta(None, "tool_calls" if calls else "stop")
            yield DONE
            return
        calls = "tools" in asked and last["content"][-1]["type"] == "text"
        block = opened(0, "tool_use", id=f"call_{number}", name="weather", input={}) if calls else opened(0, "text")
        yield from (start(), block, *(() if calls else [more(0, text=f"answer {number}")]))
        yield from (stopped("tool_use" if calls else "end_turn"), STOP)

    @asynccontextmanager
    async def opened(self, model: str) -> AsyncIterator[Provider]:
        """Open the provider that calls this server."""
        async with (
            httpx.AsyncClient(transport=self) as client,
            open_providers(environ(), client=client, servers=servers()) as providers,
        ):
            yield providers.resolve(model, provider_of(model)).provider


def up_to_the_last(sent: bytes) -> bytes:
    """Return a body up to the end of its last message's text."""
    last = codec.parse(sent)["messages"][-1]["content"]
    text = codec.encode(last if isinstance(last, str) else last[-1].get("text") or last[-1]["content"])[:-1]
    return sent[: sent.rindex(text) + len(text)]


@models
async def test_each_request_begins_with_the_one_before(model: str) -> None:
    """From step to step and from turn to turn a body only grows, also with a budget that shrinks: caches need that."""

    @tool(name="weather")
    def sunny() -> str:
        """Tell the weather."""
        return f"sunny {len(server.got)} times"

    server = Server()
    async with server.opened(model) as provider, open_runtime(provider, tools=[sunny]) as service:
        session = (await service.create_session(None, system_prompt="Be brief.")).session_id
        for number in range(5):
            budget = Budget(max_tokens=3_000 - 10 * number)
            await service.start_turn(session, f'prompt {number}, quoted "so" \N{EN DASH} {number}', budget=budget)
    sent = server.bodies
    assert len(sent) == 10
    for before, after in pairwise(sent):
        assert after.startswith(up_to_the_last(before))
    caps = {codec.parse(each).get("max_tokens") or codec.parse(each).get("max_completion_tokens") for each in sent}
    assert len(caps) > 5, "the budget is in the requests"


@attrs.frozen
class Fixed:
    """Answers with the same text, at once."""

    async def complete(self, request: ModelRequest, emit: object) -> ModelReply:
        """Return the answer."""
        del request, emit
        await trio.lowlevel.checkpoint()
        return ModelReply(AssistantMessage((TextBlock("a short answer"),)), Usage(1, 1))


@models
async def test_a_turn_costs_the_same_at_any_length(model: str) -> None:
    """The functions that a turn calls are as many at exchange 400 as at exchange 20."""
    async with Server().opened(model) as provider, open_runtime(Fixed(), models={"http": provider}) as service:
        costs: list[int] = []
        session = (await service.create_session(None)).session_id
        for until in (20, 400):
            for _turn in range(until - 4 * len(costs)):
                await service.start_turn(session, "go on")
            await service.start_turn(session, "go on", provider="http", model=model)
            turns = []
            for _turn in range(3):  # the runtime's own tasks may wake within one of them
                calls = Calls()
                with calls.counted():
                    await service.start_turn(session, "go on", provider="http", model=model)
                turns.append(calls.number)
            costs.append(min(turns))
    assert costs[1] <= costs[0] + 40  # a long request is looked at for its depth


@models
async def test_a_large_request_goes_out_in_pieces(model: str) -> None:
    """A body of megabytes is given to the client piece by piece, none of them large, also one of a single message."""
    server = Server()
    async with server.opened(model) as provider:
        for count, size in ((60, 50_000), (1, 3_000_000)):
            transcript = Transcript(codec.encode(UserMessage("x" * size)) for _ in range(count))
            await provider.complete(ModelRequest(model, transcript), lambda _: None)
            assert len(server.bodies[-1]) > 3_000_000
            assert max(map(len, server.got[-1])) <= PIECE + 1_000
            await provider.complete(ModelRequest(model, transcript), lambda _: None)
            assert server.got[-1][1:-1] == server.got[-2][1:-1]


def test_switches_touch_the_tools_only_if_these_have_the_member() -> None:
    """Tools may be many: they are not even parsed for a switch that is about something else."""
    context = ChatContext("p", "m")
    head, tail = {"model": "m", "stream_options": {}}, {"temperature": 1}
    for without, odd in (({"ids", "images"}, True), ({"stream_options"}, True), ({"strict", "temperature"}, False)):
        context.without = frozenset(without)
        tools = b"[no JSON]" if odd else b'[{"function":{"name":"a","strict":true},"strict":true}]'
        made = whole(context.between(head, tail, tools=tools))
        assert (b"stream_options" in made) == ("stream_options" not in without)
        assert (b"temperature" in made) == ("temperature" not in without)
        assert (b',"tools":' + (tools if odd else b'[{"function":{"name":"a"}}]') + b',"messages":[') in made
