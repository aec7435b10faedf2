"""The events that nearly all of a stream consists of are read in a shorter way, which has to read the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.steps import Calls
from tests.transport.providers.calls import CLAUDE, GPT, request
from tests.transport.providers.dialects import opened, start
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.transport.providers.accumulate import Answer
from warren.transport.providers.anthropic import MessagesDialect
from warren.transport.providers.openai import ChatDialect
from warren.transport.providers.settings import ANTHROPIC, OPENAI, ModelEndpoint

CHAT, MESSAGES = ModelEndpoint(OPENAI, "http://127.0.0.1:9/v1"), ModelEndpoint(ANTHROPIC, "http://127.0.0.1:9")
OTHER = st.sampled_from([None, 0, 1, 7.5, True, "", [], {}, [{"text": "part"}], {"x": 1}, "x"])
TEXT = st.sampled_from(["", "a", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "\N{GRINNING FACE}", '"\\'])
CALLS: st.SearchStrategy[Any] = st.sampled_from(
    [None, [], 7, {}, [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]]
)


def members(**some: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with any of these members."""
    return st.fixed_dictionaries({}, optional=some)


DELTA = members(content=TEXT | OTHER, refusal=TEXT | OTHER, reasoning=TEXT, reasoning_content=TEXT, tool_calls=CALLS)
CHOICE = members(
    delta=DELTA | OTHER,
    index=OTHER,
    message=st.none() | DELTA,
    finish_reason=st.sampled_from([None, "", "stop", "error", 7]),
)
CHUNK = members(
    choices=st.lists(CHOICE, min_size=1, max_size=2) | OTHER, usage=OTHER, error=OTHER, id=OTHER, object=OTHER
)
COUNT: st.SearchStrategy[Any] = st.sampled_from([None, 0, 7, -1, 2**80, 7.5, True, "7", {}])
USAGE = members(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    prompt_tokens_details=members(cached_tokens=COUNT, cache_write_tokens=COUNT) | OTHER,
)
PART = members(text=TEXT | OTHER, thinking=TEXT | OTHER, signature=TEXT | OTHER, partial_json=TEXT | OTHER, type=TEXT)
BLOCK = st.fixed_dictionaries(
    {"type": st.just("content_block_delta")}, optional={"index": OTHER, "delta": PART | OTHER}
)


def read(answer: Answer, *events: bytes) -> object:
    """Return the pieces of events, what they leave in the answer, and the error that ends them."""
    try:
        for data in events:
            answer.feed(data)
    except ProviderError as exc:
        return answer.said.taken(), exc.cause, exc.message
    reply = answer.reply(100)
    return answer.said.taken(), answer.size, answer.complete, answer.closed, reply


@given(st.lists(CHUNK, max_size=3), st.booleans())
def test_chunks(chunks: list[dict[str, Any]], escaped: bool) -> None:  # noqa: FBT001 - drawn
    """A chunk means the same if the name of its delta is written with an escape, which the shorter way passes by."""
    dialect = ChatDialect()
    plain = [codec.encode(each) for each in chunks]
    if escaped:
        plain = [each.replace(b'"x"', rb'"\ud83d"') for each in plain]
    longer = [each.replace(b'"delta"', rb'"\u0064elta"') for each in plain]
    one, other = (read(dialect.answer(request(GPT), CHAT, ()), *data, b"[DONE]") for data in (plain, longer))
    assert one == other


@given(st.fixed_dictionaries({"choices": st.just([])}, optional={"usage": USAGE | OTHER, "error": OTHER, "id": OTHER}))
def test_token_counts(chunk: dict[str, Any]) -> None:
    """The chunk with the token counts means the same if the name of its choices is written with an escape."""
    text, dialect = codec.encode({"choices": [{"delta": {"content": "hi"}}]}), ChatDialect()
    plain = codec.encode(chunk)
    longer = plain.replace(b'"choices"', rb'"\u0063hoices"')
    one, other = (read(dialect.answer(request(GPT), CHAT, ()), text, data, b"[DONE]") for data in (plain, longer))
    assert one == other


@given(st.lists(BLOCK, max_size=3), st.sampled_from(["text", "thinking", "tool_use"]), st.booleans())
def test_blocks(blocks: list[dict[str, Any]], kind: str, escaped: bool) -> None:  # noqa: FBT001 - drawn
    """The next part of a block means the same if its type is written with an escape."""
    dialect = MessagesDialect()
    begin = [codec.encode(start(input_tokens=3)), codec.encode(opened(0, kind, id="c", name="f"))]
    plain = [codec.encode(each) for each in blocks]
    if escaped:
        plain = [each.replace(b'"x"', rb'"\ud83d"') for each in plain]
    longer = [each.replace(b'"content_block_delta"', rb'"content_block_\u0064elta"') for each in plain]
    end = codec.encode({"type": "message_stop"})
    one, other = (read(dialect.answer(request(CLAUDE), MESSAGES, ()), *begin, *data, end) for data in (plain, longer))
    assert one == other


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (ChatDialect().answer(request(GPT), CHAT, ()), {"choices": [{"index": 0, "delta": {"content": "hi"}}]}),
        (
            MessagesDialect().answer(request(CLAUDE), MESSAGES, ()),
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        ),
    ],
    ids=["chat", "messages"],
)
def test_common_events_are_read_in_a_few_calls(answer: Answer, data: dict[str, Any]) -> None:
    """The shorter way is taken by the events that it is for."""
    answer.feed(codec.encode(opened(0, "text")))
    counts = []
    for each in (codec.encode(data), codec.encode(data).replace(b"delta", rb"d\u0065lta")):
        calls = Calls()
        with calls.counted():
            answer.feed(each)
        counts.append(calls.number)
    assert 2 * counts[0] < counts[1]
