"""Fitting a context into a model's window without a model call, and the request for a summary."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import Final, TypeVar

import attrs

from warren.base.values import frozen
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
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    SystemMessage,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
    begins_turn,
    files_of,
)

M = TypeVar("M", bound=SystemMessage | UserMessage | ContextMessage)
CAPS: Final = (4, 16, 64, 256)
"""Shares of the room that one tool result may take, tried in this order. The last resort is a mention alone."""
WRAPPING: Final = 64
"""An upper bound of the bytes of JSON around a message's text."""
NO_ROOM: Final = "the request for a summary does not fit into the model's window"
LONGEST_CHARACTER: Final = 6
"""The most bytes of JSON that one character takes; a control character takes as many."""


@frozen
class Fitted:
    """A context that fits.

    Attributes:
        result: the result to index and commit. If `result.discarded` is empty, there is nothing to commit.
        request: the context to send, with oversized tool results shortened. It is made again for each request.
        cap: bytes above which tool results were shortened in `request`; None if all are whole.
    """

    result: CompactionResult
    request: tuple[Message, ...]
    cap: int | None = None


def mechanical(messages: Sequence[Message], room: int) -> Fitted:
    """Make a context fit into `room` tokens without a model call. The same input gives the same output.

    A context that fits is unchanged. Else very large tool results are shortened first. Then the oldest exchanges leave,
    but never the newest one, and the summary says so. Then tool results are shortened further. If exchanges leave, a
    quarter of the room stays free, so that not every step has to do this again.

    Raises:
        CompactionError: if the newest exchange does not fit even then; the reason is `too_large`.
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
    """Return the context without the oldest exchanges: a quarter of the room is free, or only the newest is left."""
    text = split_request(layout.summary)[0].removesuffix(GAP).rstrip()
    summary = f"{shorten(text, limit // CAPS[0])}\n\n{GAP}".lstrip()
    spare = limit * 3 // 4 - layout.system_size - size_of(summary_message(summary))
    later = layout.starts[1:]
    if not later:
        return CompactionResult(layout.messages, ())
    return layout.rebuilt(next((head for head in later if view.tails[head] <= spare), later[-1]), summary)


@frozen
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
    """Return a message with tool results of at most `cap` bytes each, or as short as their mention can be."""
    if not isinstance(message, ToolResultsMessage):
        return message
    results = (attrs.evolve(result, content=shorten(result.content, cap)) for result in message.results)
    return ToolResultsMessage(tuple(results))


def shorten(text: str, cap: int) -> str:
    """Shorten a text to at most `cap` bytes of JSON: its beginning, a note of the missing characters, and its end.

    The note stays even if it is longer than `cap`, and a text that is shorter than its note is unchanged.
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
    """Return the messages that ask the model for a summary: the history as plain text, then the prompt.

    Tool calls and their results become text, because the call defines no tools and some providers refuse them then.
    Files are named; those of users go with the request, too, unless their text has to be shortened.
    Reasoning is left out, as only its own provider can read it. If the messages do not fit, oversized texts are
    shortened, then the oldest messages leave and a note has their number. The user message that opened the newest
    exchange stays.

    Args:
        messages: the context.
        prompt: the compaction prompt.
        room: tokens that the request may have; None is no limit.

    Raises:
        CompactionError: if not even the prompt fits; the reason is `too_large`.
    """
    question, layout = UserMessage(prompt), Layout.of(messages)
    told = _as_texts(layout, None)
    if room is not None:
        limit = room * BYTES_PER_TOKEN - size_of(question)
        if sum(_sizes(layout, told)) > limit:
            told = _within(layout, _as_texts(layout, max(0, limit) // 8), limit)
    return [*(message for message in told if message is not None), question]


def summary_part(messages: Sequence[Message], prompt: str, room: int | None) -> tuple[list[Message], int]:
    """Return a request for a summary of as much of a context as fits, and the index of the first message behind that.

    It is `summary_request` if all of the messages fit without one of them left out, and the index is their number then.

    Raises:
        CompactionError: if not even the oldest message fits; the reason is `too_large`.
    """
    question, layout = UserMessage(prompt), Layout.of(messages)
    told = _as_texts(layout, None)
    end = layout.end
    if room is not None:
        limit = room * BYTES_PER_TOKEN - size_of(question)
        if sum(_sizes(layout, told)) > limit:
            told = _as_texts(layout, max(0, limit) // 8)
            end = bisect_right(list(accumulate(_sizes(layout, told))), limit)
            if end <= layout.first:
                raise CompactionError("too_large", NO_ROOM)
    return [*(message for message in told[:end] if message is not None), question], end


_Told = Sequence[Message | None]
"""A context as plain text, message by message; None for a message without text."""


def _within(layout: Layout, told: _Told, limit: int) -> _Told:
    """Return the text messages without the oldest ones that do not fit into `limit` bytes."""
    sizes = _sizes(layout, told)
    sums = tails(sizes)
    if sums[0] <= limit:
        return told
    lead, place = told[: layout.first], _opener(layout)
    opener = None if place is None else told[place]
    spare = limit - sum(sizes[: layout.first]) - _size(opener) - _size(_left_out(layout.end))
    head = next((i for i in range(layout.first, layout.end + 1) if sums[i] <= spare), None)
    if head is None:
        raise CompactionError("too_large", NO_ROOM)
    pinned = (opener,) if place is not None and head > place else ()
    return [*lead, *pinned, _left_out(head - layout.first - len(pinned)), *told[head:]]


def _opener(layout: Layout) -> int | None:
    """Return the index of the newest exchange's prompt; None if an earlier cut has moved it into the summary."""
    newest = range(layout.starts[-1], layout.end) if layout.starts else ()
    return next((at for at in newest if begins_turn(layout.messages[at])), None)


def _sizes(layout: Layout, told: _Told) -> list[int]:
    """Return the bytes of each text message, or a little more. Unchanged messages are not measured again."""
    known = zip(told, layout.messages, map(sub, layout.tails, layout.tails[1:]), strict=True)
    return [size if message is original else _size(message) for message, original, size in known]


def _left_out(count: int) -> UserMessage:
    return UserMessage(f"[messages left out here: {count}]")


def _size(message: Message | None) -> int:
    """Return an upper bound of the bytes of a message's JSON, without encoding all of it."""
    match message:
        case None:
            return 0
        case UserMessage(attachments=files) if files:
            return size_of(message)
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
        case UserMessage(content, files) if files:
            return UserMessage(_named(_cut(content, cap), files), files if cap is None else ())
        case UserMessage() | ContextMessage():
            return _cut_message(message, cap)
        case AssistantMessage(blocks=(TextBlock(text),)) if text.strip() and _cut(text, cap) is text:
            return message
        case AssistantMessage():
            parts = filter(None, [message.text, *map(_call_as_text, message.tool_calls)])
            text = _named(_cut("\n\n".join(parts), cap), files_of(message))
            return AssistantMessage((TextBlock(text),)) if text.strip() else None
        case ToolResultsMessage():
            return UserMessage(_cut("\n\n".join(_results_as_text(message, names, cap)), cap))


def _cut_message(message: M, cap: int | None) -> M:
    """Return a message with its text shortened, or the message itself if it is short enough."""
    text = _cut(message.content, cap)
    return message if text is message.content else attrs.evolve(message, content=text)


def _results_as_text(message: ToolResultsMessage, names: Mapping[str, str], cap: int | None) -> Iterable[str]:
    share = None if cap is None else cap // max(1, len(message.results))
    for result in message.results:
        what = "failed" if result.is_error else "returned"
        text = f"[{names.get(result.tool_use_id, 'a tool')} {what}] {_cut(result.content, share)}"
        yield _named(text, result.attachments)


def _named(text: str, files: Sequence[Attachment]) -> str:
    """Return a text with the kinds and the names of files behind it."""
    return "\n".join([*([text] if text else []), *(f"[attached: {file.label}]" for file in files)])


def _call_as_text(call: ToolUseBlock) -> str:
    arguments = codec.encode(call.args).decode() if call.invalid_args is None else call.invalid_args
    return f"[called {call.name} with {arguments}]"


def _cut(text: str, cap: int | None) -> str:
    return text if cap is None else shorten(text, cap)
