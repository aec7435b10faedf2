"""The context of a session as its model sees it, by part, with the estimated tokens of each."""

from collections.abc import Iterator, Sequence
from typing import Final

from warren.actors.session.offered import tools_of
from warren.actors.session.planning import candidates_for
from warren.actors.supervisor.supervisor import Supervisor
from warren.actors.turn.compaction import transcript_of, wanted_of, window_for
from warren.actors.turn.route import Candidate
from warren.base.errors import InvalidParamsError
from warren.compaction.layout import estimate, summary_text
from warren.conversation import codec
from warren.conversation.attachments import Kind
from warren.conversation.messages import AssistantMessage, ContextMessage, Message, SystemMessage, ToolResultsMessage
from warren.conversation.options import NO_OPTIONS, CompactionConfig
from warren.conversation.records import SessionRecord
from warren.conversation.transcript import Transcript, weight_of
from warren.conversation.views import ContextPart, ContextTool, ContextView, PartName, SeenMessage
from warren.models.catalog import entry_of

PARTS: Final[tuple[PartName, ...]] = ("system", "tools", "summary", "prompts", "answers", "tool_results", "context")


async def context_of(supervisor: Supervisor, record: SessionRecord) -> ContextView:
    """Return the context of a session, which the caller may read; with the messages of a running turn so far.

    Raises StoreError.
    """
    transcript = await _transcript(supervisor, record)
    shared, host_objects = supervisor.shared, supervisor.registry.host_objects_of(record.session_id)
    tools = tools_of(record, NO_OPTIONS, shared, supervisor.comms, host_objects.tools)
    entry = entry_of(record.model, shared.config.models)
    config = record.options.compaction or shared.config.compaction or CompactionConfig()
    candidates = _candidates(supervisor, record)
    told = shared.lessons.of("window", candidates)
    window = window_for(config, entry.window, told, record.options.max_tokens, tools)
    offered = tuple(
        ContextTool(name, each.spec.description, estimate(len(codec.encode_whole(each.spec))))
        for name, each in tools.items()
    )
    messages = tuple(_messages(transcript))
    system = [each for each in messages if isinstance(each.message, SystemMessage)]
    summary = _summary(transcript)
    said = [each for each in messages if not isinstance(each.message, SystemMessage)]
    sizes: dict[PartName, list[int]] = {name: [] for name in PARTS}
    sizes["system"] = [each.tokens for each in system]
    sizes["tools"] = [each.tokens for each in offered]
    sizes["summary"] = [] if summary is None else [estimate(len(summary))]
    for each in said:
        sizes[_part_of(each.message)].append(each.tokens)
    parts = tuple(ContextPart(name, sum(sizes[name]), len(sizes[name])) for name in PARTS if sizes[name])
    return ContextView(
        session_id=record.session_id,
        model=record.model,
        tokens=sum(each.tokens for each in parts),
        window=None if window is None else window.tokens,
        room=None if window is None else window.request,
        parts=parts,
        tools=offered,
        summary=None if summary is None else summary_text(codec.decode_message(summary)),
        messages=(*system, *said),
        takes=_kinds(candidates),
    )


def _candidates(supervisor: Supervisor, record: SessionRecord) -> Sequence[Candidate]:
    """Return the models that a prompt of a session may get; none if one of them is unknown."""
    try:
        return candidates_for(NO_OPTIONS, record, supervisor.shared)
    except InvalidParamsError:
        return ()


def _kinds(candidates: Sequence[Candidate]) -> tuple[Kind, ...] | None:
    """Return the kinds of attachments that a prompt of a session may have: all models that may get it take them."""
    return tuple(sorted(frozenset.intersection(*(each.kinds for each in candidates)))) if candidates else None


async def _transcript(supervisor: Supervisor, record: SessionRecord) -> Transcript:
    actor = supervisor.find(record.session_id)
    if actor is not None and actor.conversation.ready:
        return actor.conversation.context
    return transcript_of(record, await supervisor.shared.storage.read(wanted_of(record)))


def _summary(transcript: Transcript) -> bytes | None:
    """Return the summary before the head; None if only the system message is there, or nothing."""
    prefix = transcript.prefix
    return prefix[-1] if prefix and not isinstance(codec.decode_message(prefix[-1]), SystemMessage) else None


def _messages(transcript: Transcript) -> Iterator[SeenMessage]:
    """Yield the messages but the summary, each with its position in the conversation."""
    for body in transcript.prefix:
        message = codec.decode_message(body)
        if isinstance(message, SystemMessage):
            yield SeenMessage(transcript.system, estimate(weight_of(body)), message)
    positions = transcript.positions
    rows = transcript.rows if not transcript.left_out else [transcript.rows[at - transcript.head] for at in positions]
    for position, body in zip(positions, rows, strict=True):
        yield SeenMessage(position, estimate(weight_of(body)), codec.decode_message(body))


def _part_of(message: Message) -> PartName:
    match message:
        case AssistantMessage():
            return "answers"
        case ToolResultsMessage():
            return "tool_results"
        case ContextMessage():
            return "context"
        case _:
            return "prompts"
