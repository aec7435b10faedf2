"""Server-sent events, split over bytes: nothing is decoded, and lines without data are passed over. No I/O."""

from typing import Final

import attrs

from warren.values import define

BOM: Final = b"\xef\xbb\xbf"
DATA: Final = b"data:"


@define
class Splitter:
    """Splits a stream of server-sent events, which arrives cut anywhere, into the data of its events.

    Comments and all fields but `data` are passed over, and so is an event without a blank line behind it.

    Attributes:
        most: bytes that the data of one event may have, and any line behind its name.
        too_long: whether there were more. The stream is not split any further then.
    """

    most: int
    too_long: bool = False
    _line: list[bytes] = attrs.field(factory=list)  # the parts of the line that has no end yet
    _line_size: int = 0
    _data: list[bytes] = attrs.field(factory=list)  # the data of the event that has no end yet
    _data_size: int = 0
    _after_return: bool = False
    _begun: bool = False

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
            if not self._begun:
                self._begun, lines[0] = True, lines[0].removeprefix(BOM)
            found = self._events(lines)
        if self._line_size > self._longest:
            self.too_long = True
        return found

    def _whole_events(self, part: bytes) -> list[bytes] | None:
        """Return the data of a part that consists of whole events of one line each, as most do; None for another."""
        if self._data or self._line_size or self._after_return or part.find(b"\r") >= 0:
            return None
        events = part.split(b"\n\n")
        found = [event[6:] for event in events if event.startswith(b"data: ")]
        if events[-1] or not found or len(found) != len(events) - 1 or max(map(len, found)) > self.most:
            return None
        if b"".join(found).find(b"\n") >= 0:
            return None
        self._begun = True
        return found

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

    def _events(self, lines: list[bytes]) -> list[bytes]:
        """Return the data of the events that end with these lines."""
        found: list[bytes] = []
        data, size, most, longest = self._data, self._data_size, self.most, self._longest
        for line in lines:
            if not line:
                if data:
                    found.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data, size = [], 0
                continue
            if line.startswith(DATA):
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                data.append(value)
                size += len(value)
            elif line == b"data":
                data.append(b"")
            if size > most or len(line) > longest:
                self.too_long = True
                break
        self._data, self._data_size = data, size
        return found
