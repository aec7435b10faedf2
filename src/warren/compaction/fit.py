"""Fitting a request into a model's window without a model: leaving out, shortening, and the request for a summary."""

from collections.abc import Iterable, Mapping, Sequence
from operator import sub
from typing import Final, TypeVar

import attrs

from warren import codec
from warren.compaction.layout import (
    BYTES_PER_TOKEN,
    GAP,
    CompactionError,
    CompactionResult,
    Layout,
    size_of,
    split_request,
    summary_message,
    tails,
)
from warren.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    SystemMessage,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)

M = TypeVar("M", SystemMessage, UserMessage, ContextMessage)
CAPS: Final = (4, 16, 64, 256)
"""Parts of the room that one tool result may take, tried in this order; after them it is only mentioned."""
WRAPPING: Final = 64
"""More bytes than the JSON around a message's text has."""
LONGEST_CHARACTER: Final = 6
"""Bytes of JSON that one character takes at most: a control character does."""


@attrs.frozen
class Fitted:
    """A context that fits.

    Attributes:
        result: what to index and commit; nothing is where `result.discarded` is empty.
        request: what to send: the new context, oversized tool results shortened. A view, made anew for each request.
        cap: bytes above which tool results were shortened in the view; None where all are whole.
    """

    result: CompactionResult
    request: tuple[Message, ...]
    cap: int | None = None


def mechanical(messages: Sequence[Message], room: int) -> Fitted:
    """Make a context fit into `room` tokens without a model; the same input gives the same output.

    First grossly oversized tool results are shortened; then the oldest exchanges leave, the newest never, and a note
    in the place of the summary says so; then tool results are shortened further. A quarter of the room is left free
    where exchanges leave, so that not every step has to do it again. Nothing happens to what fits.

    Raises CompactionError (`too_large`) where the newest exchange does not fit even so.
    """
    layout, limit = Layout.of(messages), room * BYTES_PER_TOKEN
    unchanged = CompactionResult(layout.messages, ())
    if layout.size <= limit:
        return Fitted(unchanged, layout.messages)
    caps = [limit // part for part in CAPS]
    if (view := _shortened(layout.messages, caps[0])).size <= limit:
        return Fitted(unchanged, view.messages, caps[0])
    result = _without_oldest(layout, view, limit)
    for cap in (None, *caps, 0):
        if (view := _shortened(result.messages, cap)).size <= limit:
            return Fitted(result, view.messages, cap)
    raise CompactionError("too_large", f"the newest exchange does not fit into {room} tokens")


def _without_oldest(layout: Layout, view: "_View", limit: int) -> CompactionResult:
    """Return the context from the first exchange on that leaves a quarter of the room free, or from the newest."""
    summary = _with_gap(layout.summary, limit)
    spare = limit * 3 // 4 - layout.system_size - size_of(summary_message(summary))
    later = layout.starts[1:]
    if not later:
        return CompactionResult(layout.messages, ())
    return layout.rebuilt(next((head for head in later if view.tails[head] <= spare), later[-1]), summary)


def _with_gap(summary: str, limit: int) -> str:
    text = split_request(summary)[0].removesuffix(GAP).rstrip()
    return f"{shorten(text, limit // CAPS[0])}\n\n{GAP}".lstrip()


@attrs.frozen
class _View:
    messages: tuple[Message, ...]
    tails: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.tails[0]


def _shortened(messages: Sequence[Message], cap: int | None) -> _View:
    view = tuple(message if cap is None else shorten_results(message, cap) for message in messages)
    return _View(view, tails([size_of(message) for message in view]))


def shorten_results(message: Message, cap: int) -> Message:
    """Return a message whose tool results take at most `cap` bytes each; only a mention of them may take more."""
    if not isinstance(message, ToolResultsMessage):
        return message
    results = (attrs.evolve(result, content=shorten(result.content, cap)) for result in message.results)
    return ToolResultsMessage(tuple(results))


def shorten(text: str, cap: int) -> str:
    """Return a text that takes at most `cap` bytes as JSON: its beginning, a note, its end.

    The note stays whatever the cap; a text shorter than the note stays too.
    """
    if LONGEST_CHARACTER * len(text) + 2 <= cap:
        return text
    size = len(codec.encode(text))
    if size <= cap:
        return text
    keep = max(0, cap - WRAPPING) * len(text) // size // 2
    while True:
        short = f"{text[:keep]}[… {len(text) - 2 * keep} characters left out …]{text[len(text) - keep :]}"
        if not keep or len(codec.encode(short)) <= cap:
            return short if len(codec.encode(short)) < size else text
        keep = keep * 3 // 4


def summary_request(messages: Sequence[Message], prompt: str, room: int | None) -> list[Message]:
    """Return what is sent to the model for a summary: the history as plain text, then the prompt.

    No tool is defined in that call, and then some providers refuse tool calls and results: they are told as text.
    Reasoning, which only its own provider could read, is left out. It takes at most `room` tokens (None is any number):
    oversized texts are shortened first, then the oldest messages leave, and a note says how many; the user message that
    opened the newest exchange stays.

    Raises CompactionError (`too_large`) where not even the prompt fits.
    """
    question, layout = UserMessage(prompt), Layout.of(messages)
    told = _as_texts(layout, None)
    if room is not None:
        limit = room * BYTES_PER_TOKEN - size_of(question)
        if sum(_sizes(layout, told)) > limit:
            told = _within(layout, _as_texts(layout, max(0, limit) // 8), limit)
    return [*(message for message in told if message is not None), question]


_Told = Sequence[Message | None]
"""A context as plain text, message by message; None where nothing of one can be told."""


def _within(layout: Layout, told: _Told, limit: int) -> _Told:
    """Return what is told without the oldest messages that do not fit into `limit` bytes."""
    sizes = _sizes(layout, told)
    sums = tails(sizes)
    if sums[0] <= limit:
        return told
    lead, opener = told[: layout.first], _opener(layout, told)
    spare = limit - sum(sizes[: layout.first]) - _size(opener) - _size(_left_out(layout.end))
    head = next((i for i in range(layout.first, layout.end + 1) if sums[i] <= spare), None)
    if head is None:
        raise CompactionError("too_large", "the request for a summary does not fit into the model's window")
    pinned = (opener,) if opener is not None and head > layout.starts[-1] else ()
    return [*lead, *pinned, _left_out(head - layout.first - len(pinned)), *told[head:]]


def _opener(layout: Layout, told: _Told) -> Message | None:
    """Return the user message of the newest exchange; an earlier cut may have moved it into the summary."""
    opener = layout.starts[-1:]
    return told[opener[0]] if opener and isinstance(layout.messages[opener[0]], UserMessage) else None


def _sizes(layout: Layout, told: _Told) -> list[int]:
    """Return the bytes of each message as told, or a little more; of most of them they are known."""
    known = zip(told, layout.messages, map(sub, layout.tails, layout.tails[1:]), strict=True)
    return [size if message is original else _size(message) for message, original, size in known]


def _left_out(count: int) -> UserMessage:
    return UserMessage(f"[messages left out here: {count}]")


def _size(message: Message | None) -> int:
    """Return at least the bytes of a message's JSON, without making all of it."""
    match message:
        case None:
            return 0
        case SystemMessage() | UserMessage() | ContextMessage():
            return len(codec.encode(message.content)) + WRAPPING
        case AssistantMessage():
            return len(codec.encode(message.text)) + WRAPPING
        case ToolResultsMessage():
            return size_of(message)


def _as_texts(layout: Layout, cap: int | None) -> _Told:
    answers = (message for message in layout.messages if isinstance(message, AssistantMessage))
    names = {call.id: call.name for answer in answers for call in answer.tool_calls}
    return [_as_text(message, names, cap) for message in layout.messages]


def _as_text(message: Message, names: Mapping[str, str], cap: int | None) -> Message | None:
    match message:
        case SystemMessage():
            return _cut_message(message, None if cap is None else 2 * cap)
        case UserMessage():
            return _cut_message(message, cap)
        case ContextMessage():
            return _cut_message(message, cap)
        case AssistantMessage(blocks=(TextBlock(text),)) if text.strip() and _cut(text, cap) is text:
            return message
        case AssistantMessage():
            parts = filter(None, [message.text, *map(_call_as_text, message.tool_calls)])
            text = _cut("\n\n".join(parts), cap)
            return AssistantMessage((TextBlock(text),)) if text.strip() else None
        case ToolResultsMessage():
            return UserMessage(_cut("\n\n".join(_results_as_text(message, names, cap)), cap))


def _cut_message(message: M, cap: int | None) -> M:
    """Return a message with its text cut, itself where it is not."""
    text = _cut(message.content, cap)
    return message if text is message.content else attrs.evolve(message, content=text)


def _results_as_text(message: ToolResultsMessage, names: Mapping[str, str], cap: int | None) -> Iterable[str]:
    share = None if cap is None else cap // max(1, len(message.results))
    for result in message.results:
        what = "failed" if result.is_error else "returned"
        yield f"[{names.get(result.tool_use_id, 'a tool')} {what}] {_cut(result.content, share)}"


def _call_as_text(call: ToolUseBlock) -> str:
    arguments = codec.encode(call.args).decode() if call.invalid_args is None else call.invalid_args
    return f"[called {call.name} with {arguments}]"


def _cut(text: str, cap: int | None) -> str:
    return text if cap is None else shorten(text, cap)
