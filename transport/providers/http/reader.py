"""One answer of HTTP/1.1, read by httptools: its parser in C takes a thirtieth of the time of h11's. No I/O."""

from collections.abc import Callable
from typing import ClassVar, Final

import attrs
import httptools

from warren.base.values import define

LONGEST_HEAD: Final = 100 * 1024
"""Bytes of the head of an answer, about; as many may come between two parts of its body, or behind them."""
DELIMITING: Final = (b"content-length", b"transfer-encoding")


@define(eq=False)
class ResponseReader:
    """Takes the bytes of one answer. The parser calls the methods that begin with `on_`.

    Attributes:
        bodiless: whether the answer ends with its head, as one to HEAD does whatever its Content-Length says.
        status: the status code; 0 until it has arrived. Those of `100 Continue` and the like are passed over.
        reason: the words behind it.
        headers: the headers, as they were sent.
        version: the version of the protocol, as in `1.1`.
        begun: whether the head has arrived.
        done: whether the whole answer has arrived.
        reusable: whether the connection can serve another request: the server wants it, and nothing followed.
        failure: the reason why nothing more can be read; what came before it counts.
    """

    bodiless: bool = False
    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = attrs.field(factory=list)
    version: bytes = b""
    begun: bool = False
    done: bool = False
    reusable: bool = False
    failure: str | None = None
    # The parser looks for these for each chunk: missing ones take as long as all others together.
    on_chunk_header: ClassVar[None] = None
    on_chunk_complete: ClassVar[None] = None
    _parts: list[bytes] = attrs.field(factory=list)
    on_body: Callable[[bytes], None] = attrs.field(init=False)  # takes a part of the body
    _outside: int = 0  # bytes since the last part of the body
    _parser: httptools.HttpResponseParser | None = attrs.field(init=False)

    @on_body.default
    def _append_part(self) -> Callable[[bytes], None]:
        return self._parts.append

    @_parser.default
    def _new_parser(self) -> httptools.HttpResponseParser:
        return httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take the next bytes; none is the end of the connection."""
        if not data:
            self._end()
            return
        if self._parser is None:  # something follows the answer
            self.reusable = False
            return
        parts = len(self._parts)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.failure = "a change of the protocol that nobody asked for"
        except httptools.HttpParserError as exc:
            self.reusable = False
            if not self.done:
                self.failure = str(exc)
        self._outside = self._outside + len(data) if len(self._parts) == parts else 0
        if self._outside > LONGEST_HEAD and not self.done:
            self.failure = f"{'headers behind the body' if self.begun else 'a head'} of more than {LONGEST_HEAD} bytes"
        if self.done:
            self._parser = None  # it refers to this reader: without the cycle both are freed at once

    def taken(self) -> bytes:
        """Return the part of the body that has arrived since the last call."""
        if not self._parts:
            return b""
        part = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return part

    def _end(self) -> None:
        self.reusable = False
        if self.done:
            return
        if not self.begun:
            self.failure = "Server disconnected without sending a response."
        elif any(name.lower() in DELIMITING for name, _ in self.headers):
            self.failure = "peer closed connection without sending complete message body"
        else:
            self.done = True

    def on_message_begin(self) -> None:
        """Refuse bytes behind the answer."""
        if self.done:
            raise ValueError("more than one answer")

    def on_status(self, reason: bytes) -> None:
        """Take a part of the words behind the status code."""
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind the body are left out."""
        if not self.begun:
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Take the status code and the version, unless the answer is still to come."""
        assert self._parser is not None  # noqa: S101 - for the type checker: it calls this
        status = self._parser.get_status_code()
        if status >= 200:  # noqa: PLR2004 - those below are words before the answer
            self.status, self.begun = status, True
            self.version = self._parser.get_http_version().encode()
            if self.bodiless:
                self.on_message_complete()
        else:
            self.headers.clear()
            self.reason = b""

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        if self.begun and self._parser is not None:
            self.done = True
            self.reusable = self._parser.should_keep_alive()
