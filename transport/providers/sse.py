"""Server-sent events, split over bytes: nothing is decoded, and lines without data are passed over. No I/O."""

from typing import Final, Literal

import attrs

from warren.base.values import define
from warren.conversation import codec

BOM: Final = b"\xef\xbb\xbf"
DATA: Final = b"data:"
FIELDS: Final = (DATA, b"event:", b":", b"id:", b"retry:")
"""How the lines of a stream begin; a body whose first line begins otherwise is no stream."""
_FAILS: Final = (b"event: error", b"event:error")
_JSON: Final = (b"{", b"[")
Kind = Literal["data", "error", "bare"]
"""The kind of the event that has no end yet: one with data, one named `error`, or lines outside events."""


@define
class Splitter:
    """Splits a stream of server-sent events, which arrives cut anywhere, into the data of its events.

    Comments and all fields but `data` are passed over. The data of an event named `error` becomes the member `error`
    of an object whose `type` is `error`. JSON between the events, in lines without a field, is an event, too: proxies
    and Google report errors so. A body that begins otherwise than a stream is not split: `end` returns it.

    Attributes:
        most: bytes that the data of one event may have, and any line behind its name.
        too_long: whether there were more. The stream is not split any further then.
        streams: whether the body has begun as a stream of events does.
    """

    most: int
    too_long: bool = False
    streams: bool = False
    _line: list[bytes] = attrs.field(factory=list)  # the parts of the line that has no end yet
    _line_size: int = 0
    _data: list[bytes] = attrs.field(factory=list)  # the data of the event that has no end yet
    _data_size: int = 0
    _kind: Kind = "data"
    _after_return: bool = False

    def feed(self, part: bytes) -> list[bytes]:
        """Return the data of the events that end in the next part of the stream."""
        if self.too_long:
            return []
        if (events := self._whole_events(part)) is not None:
            return events
        lines = self._with_one_ending(part).split(b"\n")
        self._line.append(lines[0])
        self._line_size += len(lines[0])
        found: list[bytes] = []
        if len(lines) > 1:
            lines[0] = b"".join(self._line)
            self._line = [lines.pop()]
            self._line_size = len(self._line[0])
            if not self.streams:
                lines[0] = lines[0].removeprefix(BOM)
            found = self._events(lines)
        if self._line_size > self._longest:
            self.too_long = True
        return found

    def _whole_events(self, part: bytes) -> list[bytes] | None:
        """Return the data of a part that consists of whole events of one line each, as most do; None for another."""
        if self._data or self._line_size or self._after_return or part.find(b"\r") >= 0:
            return None
        if not (part.startswith(b"data: ") and part.endswith(b"\n\n")):
            return None
        events = part[6:-2].split(b"\n\ndata: ")
        if part.count(b"\n") != 2 * len(events) or max(map(len, events)) > self.most:
            return None
        self.streams = True
        return events

    @property
    def _longest(self) -> int:
        return self.most + len(DATA) + 1

    def _with_one_ending(self, part: bytes) -> bytes:
        """Return a part with each end of a line as a line feed; a carriage return alone is one, too."""
        if self._after_return and part:
            part = part.removeprefix(b"\n")
            self._after_return = False
        if b"\r" not in part:
            return part
        self._after_return = part.endswith(b"\r")
        return part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def end(self) -> list[bytes]:
        """Return what the stream ends with: an event without a blank line behind it, which may be cut, or no stream."""
        if self.too_long or not (self._data or self._line_size):
            return []
        last = b"".join(self._line)
        self._line, self._line_size = [], 0
        found = self._events([last if self.streams else last.removeprefix(BOM)])
        return [*found, self._event()] if self._data else found

    def _events(self, lines: list[bytes]) -> list[bytes]:
        """Return the data of the events that end with these lines."""
        found: list[bytes] = []
        data, most, longest = self._data, self.most, self._longest
        for line in lines:
            if not line:
                if data and (self.streams or self._kind != "bare"):
                    found.append(self._event())
                continue
            if line.startswith(DATA):
                if self._kind == "bare":
                    self._end_bare(found)
                self.streams = True
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                data.append(value)
                self._data_size += len(value)
            elif line.startswith(b"event:"):
                if self._kind == "bare":
                    self._end_bare(found)
                self.streams = True
                if line in _FAILS:
                    self._kind = "error"
                    data.append(b"")  # it is an error also without data
            else:
                self._other(line, found)
            if self._data_size > most or len(line) > longest:
                self.too_long = True
                break
        return found

    def _other(self, line: bytes, found: list[bytes]) -> None:
        """Take a line that has neither data nor the name of an event."""
        if self._kind != "bare":
            if line == b"data":
                self._data.append(b"")
                return
            if line.startswith(FIELDS):
                self.streams = True
            line = line.lstrip()
            if not line or (self.streams and not line.startswith(_JSON)):
                return
            if self._data:
                found.append(self._event())
            self._kind = "bare"
        self._data.append(line)
        self._data_size += len(line) + 1

    def _end_bare(self, found: list[bytes]) -> None:
        """Return to the events: JSON before them is one, other words are nothing."""
        event = self._event()
        if event.startswith(_JSON):
            found.append(event)

    def _event(self) -> bytes:
        """Return the event that ends here."""
        data, kind = self._data, self._kind
        event = data[0] if len(data) == 1 else b"\n".join(data)
        data.clear()
        self._data_size, self._kind = 0, "data"
        return _error(event) if kind == "error" else event


def _error(data: bytes) -> bytes:
    """Return the data of an event named `error` as an event of the protocols, which all read this form."""
    try:
        error = codec.parse(data)
    except ValueError:
        error = data.decode(errors="replace").strip()
    return codec.encode_whole({"type": "error", "error": error})
