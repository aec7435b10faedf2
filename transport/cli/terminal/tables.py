"""Sessions and models as text: tables on a terminal, fields between tabs in a pipe."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from typing import Final

from warren.conversation import codec, messages, views
from warren.conversation.attachments import Attachment
from warren.conversation.event_text import text_of_shrinking, usage_text
from warren.conversation.inputs import Input
from warren.conversation.records import CompactionEntry
from warren.transport.cli.terminal.streams import Streams, visible

GAPS: Final = re.compile(r"\s+")
FOLDED: Final = 2
"""Columns of a table, the last ones, whose cells may take several lines; the others are short."""
SHOWN: Final = 5
"""Damaged rows that are named."""
END: Final = 12
"""Characters at the end of an id that name a session without a title."""
MINUTE: Final = 16
"""Characters of a time without its seconds."""
SHORT: Final = 14
"""Characters of the names of a model and of an agent, and of labels, on a narrow terminal."""
LEAST: Final = 16
"""Characters of a title that are shown, if need be on several lines."""
GAP: Final = 2
"""Characters between two columns."""
COLUMNS: Final = ("session", "updated", "messages", "tokens", "state", "model", "agent", "labels", "title")


def show_list(streams: Streams, page: views.SessionPage) -> None:
    """Show a page of sessions."""
    note_damaged(streams, "session", page.damaged)
    if not page.sessions:
        streams.note("no sessions")
        return
    rows = [_row(summary) for summary in page.sessions]
    show_table(streams, COLUMNS, _fitted(rows, streams.columns) if streams.out_is_terminal else rows)


def note_damaged(streams: Streams, what: str, rows: Sequence[views.DamagedRow]) -> None:
    """Show the rows that were left out, and advice."""
    if rows:
        count = f"1 {what} is" if len(rows) == 1 else f"{len(rows)} {what}s are"
        listed = "; ".join(f"{row.row}: {row.problem}" for row in rows[:SHOWN])
        more = f"; and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        streams.note(f"{count} damaged and left out: {listed}{more}; `warren doctor --fix` sets them aside")


def show_inputs(streams: Streams, inputs: Sequence[Input]) -> None:
    """Show the inputs in a session's inbox."""
    rows = [_input(each) for each in inputs]
    show_rows(streams, ("input", "kind", "since", "source", "text", "due"), rows, "nothing waits")


def _input(each: Input) -> tuple[str, ...]:
    due = "" if each.not_before is None else moment(each.not_before)
    return each.input_id, each.kind, moment(each.created_at), each.source or "", each.text, due


def show_context(streams: Streams, view: views.ContextView) -> None:
    """Show the parts of a session's context."""
    of = "" if view.window is None else f" of {view.window:,}"
    streams.note(f"about {view.tokens:,}{of} tokens, for {view.model}")
    rows = [(each.name.replace("_", " "), str(each.count), str(each.tokens)) for each in view.parts]
    show_table(streams, ("part", "count", "tokens"), rows)


def show_rows(streams: Streams, titles: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    """Show rows as `show_table`; without any, say on stderr that there is nothing."""
    if rows:
        show_table(streams, titles, rows)
    else:
        streams.note(nothing)


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
    streams: Streams, view: views.SessionView, page: views.HistoryPage, compactions: Iterable[CompactionEntry] = ()
) -> None:
    """Show a session: its heading, the given compactions, then its messages."""
    streams.write("".join(f"{name + ':':<13}{value}\n" for name, value in facts(view)))
    for compaction in compactions:
        _show_compaction(streams, compaction)
    note_damaged(streams, "message", page.damaged)
    gone = max(0, page.kept_from - 1)
    if gone:
        streams.note(f"messages 1 to {gone} are gone: they were kept for as long as they had to be", "dim")
    left_out = page.total - gone - len(page.messages)
    if left_out > 0:
        streams.note(f"the newest {len(page.messages)} of {page.total} messages; --limit shows more", "dim")
    for entry in page.messages:
        _show_entry(streams, entry)


def facts(view: views.SessionView) -> list[tuple[str, str]]:
    """Return the heading of a session, name by name."""
    state, usage = view.state, view.billing.usage
    found = [
        ("session", state.session_id),
        *([("title", _field(state.title))] if state.title else []),
        ("state", _state_of(state)),
        ("model", state.model),
        ("created", moment(state.created_at)),
        ("updated", moment(state.updated_at)),
        ("messages", str(state.message_count)),
        ("compactions", str(state.compactions)),
        ("tokens", usage_text(usage)),
    ]
    if state.parent is not None:
        found.append(("fork of", f"{state.parent.session_id}, after {state.parent.at} messages"))
    if state.delegated_by is not None:
        found.append(("child of", state.delegated_by))
    if state.children is not None:
        found.append(("children", f"{state.children.total}, {state.children.working} at work"))
    if state.allowed_tools:
        found.append(("allowed", ", ".join(state.allowed_tools)))
    return found + ([("labels", labels(state.labels))] if state.labels else [])


def _state_of(state: views.SessionState) -> str:
    """Return the lifecycle of a session, and the state of its turn if one has not ended."""
    turn = state.turn
    if turn is None:
        return f"{state.lifecycle}, turn running" if state.is_active else state.lifecycle
    reasons = "".join(f" for {reason}" for reason in dict.fromkeys(each.reason for each in turn.waiting_for))
    resumed = f", resumed {turn.resumed} times" if turn.resumed > 1 else ", resumed" if turn.resumed else ""
    return f"{state.lifecycle}, turn {turn.state}{reasons} since {moment(turn.since)}{resumed}"


def entry_text(message: messages.Message) -> tuple[str, str]:
    """Return the speaker of a message, and its text."""
    match message:
        case messages.SystemMessage(content=content):
            return "system", content
        case messages.UserMessage(content=content, attachments=files):
            return "user", _with_files(content, files)
        case messages.ContextMessage(content=content, source=source):
            return "context" if source is None else f"from {source}", content
        case messages.AssistantMessage(blocks=blocks, stop_reason=reason, structured_output=data):
            ending = "" if reason in ("end_turn", "tool_use") else f" ({reason})"
            as_data = "" if data is None else f"(as data) {codec.encode(data).decode()}"
            return f"assistant{ending}", "\n".join(filter(None, (*map(_block, blocks), as_data)))
        case messages.ToolResultsMessage(results=results):
            told = ((f"[{'error' if item.is_error else 'ok'}] {item.content}", item.attachments) for item in results)
            return "tools", "\n".join(starmap(_with_files, told))


def _with_files(text: str, files: Iterable[Attachment]) -> str:
    """Return the text of a message with a line for each of its files."""
    return "\n".join((text, *map(_file, files)))


def _file(file: Attachment) -> str:
    place = file.url or f"{file.size} bytes, sha256 {file.sha256}"
    if file.not_kept is not None:
        place += f", not kept: {_field(file.not_kept)}"
    return f"[{_field(file.label)}: {file.media_type}, {place}]"


def moment(when: datetime) -> str:
    """Return a time in the user's own zone."""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def labels(found: Mapping[str, str]) -> str:
    """Return labels in the form of the command line."""
    return " ".join(f"{key}={value}" for key, value in sorted(found.items()))


def _row(summary: views.SessionSummary) -> tuple[str, ...]:
    return (
        summary.session_id,
        moment(summary.updated_at),
        str(summary.message_count),
        str(summary.total_tokens),
        summary.lifecycle if summary.turn is None else summary.turn.state,
        summary.model,
        "" if summary.agent is None else summary.agent.name,
        labels(summary.labels),
        summary.title or "",
    )


def _fitted(rows: Sequence[tuple[str, ...]], width: int) -> Sequence[tuple[str, ...]]:
    """Return rows of sessions for a terminal: titles are cut to the room that the other columns leave in a line."""
    room = width - _used(rows)
    if room < LEAST:
        rows = [_narrowed(*row) for row in rows]
        room = max(LEAST, width - _used(rows))
    return [(*rest, _cut(title, room)) for *rest, title in rows]


def _used(rows: Sequence[tuple[str, ...]]) -> int:
    """Return the characters of a line that the columns before the title take; empty columns are not shown."""
    longest = [max(len(_field(cell)) for cell in cells) for cells in zip(*rows, strict=True)]
    return sum(max(most, len(name)) + GAP for most, name in zip(longest[:-1], COLUMNS[:-1], strict=True) if most)


def _narrowed(session_id: str, updated: str, _messages: str, _tokens: str, state: str, *rest: str) -> tuple[str, ...]:
    """Return a row for a narrow terminal; a session is stored unless its row says otherwise."""
    model, agent, marks, title = rest
    shown = "" if state == "stored" else state
    return (
        session_id[-END:],
        updated[:MINUTE],
        "",
        "",
        shown,
        *(_cut(each, SHORT) for each in (model, agent, marks)),
        title,
    )


def _cut(text: str, width: int) -> str:
    """Return text on one line of at most `width` columns."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs rich

    line = Text(_field(text))
    line.truncate(width, overflow="ellipsis")
    return line.plain


def _show_compaction(streams: Streams, entry: CompactionEntry) -> None:
    heading = f"compacted · {moment(entry.created_at)} · {text_of_shrinking(entry)}"
    if not streams.out_is_terminal:
        streams.write(f"\n{heading}:\n{entry.summary}\n")
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs rich

    streams.render(Text(f"\n{heading}", "dim"), Text(visible(entry.summary)))


def _show_entry(streams: Streams, entry: views.HistoryEntry) -> None:
    who, text = entry_text(entry.message)
    who += " (left out of the model's context)" if entry.left_out else ""
    who += f" (without its {entry.part_left_out}, which the server refused)" if entry.part_left_out else ""
    if not streams.out_is_terminal:
        streams.write(f"\n{who}:\n{text}\n")
        return
    from rich.markdown import Markdown  # noqa: PLC0415 - only a terminal needs rich
    from rich.text import Text  # noqa: PLC0415 - the same

    heading = Text(
        f"\n{who} · {moment(entry.created_at)}", "bold" if isinstance(entry.message, messages.UserMessage) else "dim"
    )
    spoken = isinstance(entry.message, messages.AssistantMessage)
    streams.render(heading, Markdown(visible(text)) if spoken else Text(visible(text)))


def _block(block: object) -> str:
    match block:
        case messages.TextBlock(text=text):
            return text
        case messages.ReasoningBlock(text=text):
            return f"(thinks) {text}" if text else ""
        case messages.ToolUseBlock(name=name, args=args, invalid_args=invalid):
            return f"(calls {name} {invalid if invalid is not None else dict(args)})"
        case messages.FileBlock(file=file):
            return _file(file)
    return ""


def _field(text: str) -> str:
    """Return text that stays within one field of one line."""
    return visible(GAPS.sub(" ", text))
