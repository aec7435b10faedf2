"""Shows a turn to the user: as it runs, when it has an answer, and when it failed."""

from collections.abc import Iterable

import attrs

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.conversation import codec, events
from warren.conversation.answer_text import AnswerText
from warren.conversation.event_text import shorten, text_of_event, text_of_shrinking, usage_text
from warren.conversation.records import CompactionEntry
from warren.conversation.views import TurnResult
from warren.transport.cli.failures import show_error
from warren.transport.cli.settings.options import Mode, Options
from warren.transport.cli.terminal.markdown import MarkdownStream
from warren.transport.cli.terminal.streams import Streams


@define
class Screen:
    """Shows the turns of one command.

    Text: the answer on stdout, streamed or whole at its end, on a terminal as rendered Markdown; all else on stderr.
    JSON: one object a turn on stdout, and on stderr an error's body, preceded by the events when verbose.

    Trap: every method may block for as long as the reader of stdout does.

    Attributes:
        streaming: whether text is written as it comes.
        footnote: added to the line under each answer.
    """

    streams: Streams
    mode: Mode
    streaming: bool
    footnote: str = ""
    _answer: AnswerText = attrs.field(factory=AnswerText)
    _markdown: MarkdownStream | None = None
    _line_open: bool = False
    _wrote: bool = False

    @classmethod
    def of(cls, options: Options, streams: Streams) -> "Screen":
        """Return the screen of the options. If they do not decide, it streams on a terminal that shows no events."""
        by_default = streams.out_is_terminal and not options.mode.verbose
        streaming = by_default if options.stream is None else options.stream
        markdown = MarkdownStream(streams) if streams.out_is_terminal and not options.mode.json else None
        return cls(streams, options.mode, streaming and not options.mode.json, markdown=markdown)

    def show(self, items: Iterable[events.Envelope | str]) -> None:
        """Show events of the running turn, and remarks of the command."""
        for item in items:
            if not isinstance(item, str):
                self._show_event(item)
            elif not self.mode.json:
                self._note(item)

    def finish(self, result: TurnResult) -> None:
        """Show the answer, or its end, the line under it, and the reason if it is not whole."""
        if self.mode.json:
            self.streams.write(codec.encode(result).decode() + "\n")
            return
        if result.structured_output is not None:
            self._end_line()
            self._write(codec.encode(result.structured_output).decode())
        elif not self._wrote:
            self._say(result.text)
        self._end_line()
        self.streams.note(footer(result) + self.footnote, "dim")
        if problem := missing(result):
            self.streams.note(problem, "yellow")
        self._wrote = False

    def compacted(self, session_id: str, entry: CompactionEntry, *, aside: bool = False) -> None:
        """Show the result of a compaction that the user asked for; with `aside` on stderr, except for JSON."""
        line = f"compacted {session_id}: {text_of_shrinking(entry)}"
        if self.mode.json:
            self.streams.write(codec.encode({"session_id": session_id, **codec.to_data(entry)}).decode() + "\n")
        elif aside:
            self.streams.note(line, "dim")
        else:
            self.streams.write(line + "\n")

    def fail(self, error: WarrenError) -> None:
        """Show the error of a turn without an answer; the text so far goes to stdout."""
        text = error.details.get("text")
        if isinstance(text, str) and not self._wrote and not self.mode.json:
            self._say(text)
        self._end_line()
        self._wrote = False
        show_error(error, self.mode, self.streams)
        if "goes_on" in error.details and not self.mode.json:
            self._note(f"`warren wait {error.session_id}` waits for the end of the turn")

    def _show_event(self, envelope: events.Envelope) -> None:
        if self.mode.verbose:
            self._note(codec.encode(envelope).decode() if self.mode.json else trace(envelope))
        elif not self.mode.json and (remark := _remark(envelope)) is not None:
            self._note(remark)
        if self.streaming:
            self._say(self._answer.text_of(envelope.event))
            if isinstance(envelope.event, events.TextComplete):
                self._end_block()

    def _note(self, text: str) -> None:
        """Write a line to stderr; an answer on the same terminal goes on below it."""
        if self.streams.out_is_terminal:
            self._end_line()
        self.streams.note(text, "dim")

    def _say(self, text: str) -> None:
        """Show a piece of the answer: rendered on a terminal, unchanged in a pipe."""
        if self._markdown is None:
            self._write(text)
        elif text:
            self._markdown.write(text)
            self._wrote = True

    def _end_block(self) -> None:
        if self._markdown is not None:
            self._markdown.end()

    def _write(self, text: str) -> None:
        if text:
            self.streams.write(text)
            self._line_open = not text.endswith("\n")
            self._wrote = True

    def _end_line(self) -> None:
        self._end_block()
        if self._line_open:
            self.streams.write("\n")
            self._line_open = False


def _remark(envelope: events.Envelope) -> str | None:
    match event := envelope.event:
        case events.FilesComplete(attachments=files):
            get = f"warren sessions file {envelope.session_id}"
            return "\n".join(f"{file.label}, {file.size} bytes: {get} {file.sha256} -o FILE" for file in files)
        case events.InputTaken(kind=kind, content=content, source=source):
            return f"{source or kind} says {shorten(content)}"
    return text_of_event(event)


def missing(result: TurnResult) -> str | None:
    """Return the reason why an answer is not whole; None if it is, or is there as data."""
    if result.structured_output is not None:
        return None
    match result.stop_reason:
        case "max_tokens":
            return "the answer was cut: it reached its cap of tokens (--max-tokens, or the model's own)"
        case "content_filter":
            return "the answer is not whole: a filter of the model's provider has ended it"
    return None if result.text.strip() or result.attachments else "the answer is empty"


def footer(result: TurnResult) -> str:
    """Return the line under an answer."""
    steps = f"{result.steps} step" + ("" if result.steps == 1 else "s")
    return f"session {result.session_id} · {steps} · tokens {usage_text(result.usage)}"


def trace(envelope: events.Envelope) -> str:
    """Return an event as one line for `--verbose`; long values are cut."""
    data = codec.to_data(envelope.event)
    fields = " ".join(f"{name}={shorten(value)}" for name, value in data.items() if name != "type")
    return f"{envelope.timestamp:%H:%M:%S.%f} {envelope.seq} {data['type']} {fields}".rstrip()
