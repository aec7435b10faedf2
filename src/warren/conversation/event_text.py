"""Texts of events for users: tool calls, retries, budgets and compactions of a turn."""

from decimal import Decimal
from typing import Final

from warren.conversation import codec, events
from warren.conversation.records import CompactionEntry
from warren.conversation.usage import Usage

MAX_VALUE: Final = 200


def text_of_shrinking(entry: CompactionEntry | events.CompactionCompleted) -> str:
    """Return the effect of a compaction on the context."""
    return f"{entry.messages_before} messages became {entry.messages_after}"


def usage_text(usage: Usage) -> str:
    """Return the tokens of a turn or a session, those of the prompt cache among them, and the cost if it is known."""
    cached = {"cached": usage.cache_read_tokens, "written": usage.cache_creation_tokens}
    parts = ", ".join(f"{count} {name}" for name, count in cached.items() if count)
    text = f"{usage.input_tokens} in" + (f" ({parts})" if parts else "") + f"/{usage.output_tokens} out"
    cost = "" if usage.cost is None else f" · {dollars(usage.cost)}"
    return ("about " if usage.estimated else "") + text + cost


def dollars(cost: Decimal) -> str:
    """Return a cost in US dollars, to the millionth, and at least to the cent."""
    whole, _, rest = f"{cost:.6f}".partition(".")
    return f"${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def text_of_event(event: events.Event) -> str | None:  # noqa: PLR0911 - one for each kind
    """Return the text of an event for a user; None if it needs none beside the answer."""
    match event:
        case events.ToolCallRequested(name=name, args=args):
            return f"tool {name} {shorten(args)}"
        case events.ToolExecutionCompleted(name=name, result=result, is_error=True):
            return f"tool {name} failed: {shorten(result)}"
        case events.FilesComplete(attachments=files):
            return "\n".join(f"{file.label}: {file.size} bytes, sha256 {file.sha256}" for file in files)
        case events.Retrying() | events.RequestRepaired() | events.ModelSwitched() | events.TurnResumed():
            return _text_of_trouble(event)
        case events.BudgetWarning(budget_type=kind, percent=percent):
            return f"{percent:g} % of the {kind.replace('_', ' ')} budget is used"
        case events.CompactionStarted() | events.CompactionCompleted() | events.CompactionFailed():
            return _text_of_compaction(event)
    return None


def _text_of_trouble(
    event: events.Retrying | events.RequestRepaired | events.ModelSwitched | events.TurnResumed,
) -> str:
    if isinstance(event, events.TurnResumed):
        return f"the turn goes on after an interruption ({event.resumed}); text of an unfinished step no longer counts"
    if isinstance(event, events.RequestRepaired):
        return f"{event.what} was {event.action.replace('_', ' ')}, trying again: {event.why}"
    if isinstance(event, events.Retrying):
        wait = event.delay_ms / 1000
        return f"{event.error}; trying again in {wait:g} s ({event.attempt} of {event.max_attempts})"
    anew = ", from the beginning" if event.discarded else ""
    return f"{event.from_model}: {event.error}; {event.to_model} answers{anew}"


def _text_of_compaction(event: events.CompactionStarted | events.CompactionCompleted | events.CompactionFailed) -> str:
    match event:
        case events.CompactionStarted(message_count=count):
            return f"compacting the context, {count} messages"
        case events.CompactionCompleted():
            return f"compacted: {text_of_shrinking(event)}"
        case events.CompactionFailed(error=error):
            return f"not compacted: {error}"


def shorten(value: object) -> str:
    """Return a value as JSON, cut to fit on a line."""
    text = codec.encode(value).decode()
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
