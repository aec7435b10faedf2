"""Sessions and models as text: tables on a terminal, fields between tabs in a pipe."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from warren.inputs import Input
from warren.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.records import CompactionEntry
from warren.transport.cli.streams import Streams, visible
from warren.transport.remarks import shrinking
from warren.views import HistoryEntry, HistoryPage, SessionPage, SessionSummary, SessionView

GAPS: Final = re.compile(r"\s+")
FOLDED: Final = 2
"""Columns of a table, the last ones, whose cells may take several lines; the others are short."""
WIDE: Final = 100
"""Characters in a line from which on whole ids have room beside the rest."""
END: Final = 12
"""Characters at the end of an id that name a session where it has not."""


def show_list(streams: Streams, page: SessionPage) -> None:
    """Show a page of sessions."""
    if not page.sessions:
        streams.note("no sessions")
        return
    rows = [_row(summary) for summary in page.sessions]
    if streams.out_is_terminal and streams.columns < WIDE:
        rows = [(session_id[-END:], *rest) for session_id, *rest in rows]
    show_table(streams, ("session", "updated", "messages", "tokens", "state", "model", "labels"), rows)


def show_inputs(streams: Streams, inputs: Sequence[Input]) -> None:
    """Show what waits in a session's inbox."""
    if not inputs:
        streams.note("nothing waits")
        return
    rows = [(each.input_id, each.kind, moment(each.created_at), each.source or "", each.text) for each in inputs]
    show_table(streams, ("input", "kind", "since", "source", "text"), rows)


def show_table(streams: Streams, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Show rows: under titles on a terminal, without empty columns; else as fields between tabs, one row a line."""
    if not streams.out_is_terminal:
        for row in rows:
            streams.write("\t".join(_field(cell) for cell in row) + "\n")
        return
    from rich.table import Table  # noqa: PLC0415 - only a terminal needs rich

    table = Table(box=None, header_style="bold", pad_edge=False)
    filled = [position for position in range(len(titles)) if any(row[position] for row in rows)]
    for position in filled:
        table.add_column(titles[position], overflow="fold", no_wrap=position < len(titles) - FOLDED)
    for row in rows:
        table.add_row(*(_field(row[position]) for position in filled))
    streams.render(table)


def show_session(
    streams: Streams, view: SessionView, page: HistoryPage, compactions: Iterable[CompactionEntry] = ()
) -> None:
    """Show a session: what it is, the compactions that are given, then its messages."""
    streams.write("".join(f"{name + ':':<13}{value}\n" for name, value in facts(view)))
    for compaction in compactions:
        _show_compaction(streams, compaction)
    gone = max(0, page.kept_from - 1)
    if gone:
        streams.note(f"messages 1 to {gone} are gone: they were kept for as long as they had to be", "dim")
    left_out = page.total - gone - len(page.messages)
    if left_out > 0:
        streams.note(f"the newest {len(page.messages)} of {page.total} messages; --limit shows more", "dim")
    for entry in page.messages:
        _show_entry(streams, entry)


def facts(view: SessionView) -> list[tuple[str, str]]:
    """Return the heading of a session, name by name."""
    state, usage = view.state, view.billing.usage
    found = [
        ("session", state.session_id),
        ("state", f"{state.lifecycle}, turn running" if state.is_active else state.lifecycle),
        ("model", state.model),
        ("created", moment(state.created_at)),
        ("updated", moment(state.updated_at)),
        ("messages", str(state.message_count)),
        ("compactions", str(state.compactions)),
        ("tokens", f"{usage.input_tokens} in/{usage.output_tokens} out"),
    ]
    if state.parent is not None:
        found.append(("fork of", f"{state.parent.session_id}, after {state.parent.at} messages"))
    return found + ([("labels", labels(state.labels))] if state.labels else [])


def entry_text(message: Message) -> tuple[str, str]:
    """Return who speaks in a message, and its text."""
    match message:
        case SystemMessage(content=content):
            return "system", content
        case UserMessage(content=content):
            return "user", content
        case ContextMessage(content=content, source=source):
            return "context" if source is None else f"from {source}", content
        case AssistantMessage(blocks=blocks, stop_reason=reason):
            ending = "" if reason in ("end_turn", "tool_use") else f" ({reason})"
            return f"assistant{ending}", "\n".join(filter(None, map(_block, blocks)))
        case ToolResultsMessage(results=results):
            return "tools", "\n".join(f"[{'error' if item.is_error else 'ok'}] {item.content}" for item in results)


def moment(when: datetime) -> str:
    """Return a time in the user's own zone."""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def labels(found: Mapping[str, str]) -> str:
    """Return labels as they are given on the command line."""
    return " ".join(f"{key}={value}" for key, value in sorted(found.items()))


def _row(summary: SessionSummary) -> tuple[str, ...]:
    return (
        summary.session_id,
        moment(summary.updated_at),
        str(summary.message_count),
        str(summary.total_tokens),
        summary.lifecycle,
        summary.model,
        labels(summary.labels),
    )


def _show_compaction(streams: Streams, entry: CompactionEntry) -> None:
    heading = f"compacted · {moment(entry.created_at)} · {shrinking(entry)}"
    if not streams.out_is_terminal:
        streams.write(f"\n{heading}:\n{entry.summary}\n")
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs rich

    streams.render(Text(f"\n{heading}", "dim"), Text(visible(entry.summary)))


def _show_entry(streams: Streams, entry: HistoryEntry) -> None:
    who, text = entry_text(entry.message)
    if not streams.out_is_terminal:
        streams.write(f"\n{who}:\n{text}\n")
        return
    from rich.markdown import Markdown  # noqa: PLC0415 - only a terminal needs rich
    from rich.text import Text  # noqa: PLC0415 - the same

    heading = Text(f"\n{who} · {moment(entry.created_at)}", "bold" if who == "user" else "dim")
    spoken = isinstance(entry.message, AssistantMessage)
    streams.render(heading, Markdown(visible(text)) if spoken else Text(visible(text)))


def _block(block: object) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ReasoningBlock(text=text):
            return f"(thinks) {text}" if text else ""
        case ToolUseBlock(name=name, args=args, invalid_args=invalid):
            return f"(calls {name} {invalid if invalid is not None else dict(args)})"
    return ""


def _field(text: str) -> str:
    """Return text that stays within one field of one line."""
    return visible(GAPS.sub(" ", text))
