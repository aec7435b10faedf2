"""Requests as bytes. h11 checks and writes them; the head of a kind of request is written once. No I/O."""

from typing import Final

import attrs
import h11

from warren.base.values import define

MOST_HEADS: Final = 64
"""Heads that are kept: a runtime calls few endpoints."""
LENGTH: Final = b"content-length"

Fields = list[tuple[bytes, bytes]]
"""The names and the values of headers."""


@define(eq=False)
class RequestHeads:
    """The heads of requests that h11 has written, without their length.

    h11 takes as long to write a head as a connection takes for everything else. Requests to one endpoint differ in the
    length alone, so its line is left out and added behind.
    """

    _made: dict[tuple[object, ...], bytes] = attrs.field(factory=dict, repr=False)

    def known(self, method: bytes, target: bytes, fields: Fields) -> bytes | None:
        """Return a head without the empty line at its end if it was written before."""
        return self._made.get((method, target, *fields))

    def written(self, method: bytes, target: bytes, fields: Fields) -> bytes:
        """Return a head without the empty line at its end. Raises h11.LocalProtocolError if it is not valid."""
        key = (method, target, *fields)
        head = self._made.get(key)
        if head is None:
            if len(self._made) >= MOST_HEADS:
                self._made.clear()
            request = h11.Request(method=method, target=target, headers=fields)
            head = self._made[key] = (h11.Connection(h11.CLIENT).send(request) or b"")[:-2]
        return head


@define(eq=False)
class RequestWriter:
    """Writes one request. Its body has the length of its Content-Length, or comes in chunks, which h11 writes.

    Attributes:
        heads: the heads that were written before.
    """

    heads: RequestHeads
    _left: int = 0
    _chunks: h11.Connection | None = None

    @property
    def whole(self) -> bool:
        """Whether the body has the length that was announced; False without one."""
        return self._chunks is None and not self._left

    def head(self, method: bytes, target: bytes, fields: Fields) -> bytes:
        """Return the head as bytes. Raises h11.LocalProtocolError if it is not valid."""
        if fields and fields[-1][0].lower() == LENGTH:
            *others, (_, size) = fields
            if (head := self.heads.known(method, target, others)) is not None:  # nothing of it has to be looked at
                return self._with_length(head, size)
        sizes, rest, chunked = list[bytes](), Fields(), False
        for field in fields:
            name = field[0].lower()
            if name == LENGTH:
                sizes.append(field[1])
            else:
                rest.append(field)
                chunked = chunked or name == b"transfer-encoding"
        if len(sizes) > 1 or chunked:
            self._chunks = h11.Connection(h11.CLIENT)
            return self._chunks.send(h11.Request(method=method, target=target, headers=fields)) or b""
        head = self.heads.written(method, target, rest)
        if not sizes:
            return head + b"\r\n"
        return self._with_length(head, sizes[0])

    def _with_length(self, head: bytes, size: bytes) -> bytes:
        if not size.isdigit():
            raise h11.LocalProtocolError("bad Content-Length")
        self._left = int(size)
        return b"%bContent-Length: %b\r\n\r\n" % (head, size)

    def piece(self, data: bytes) -> bytes:
        """Return the next piece of the body as bytes. Raises h11.LocalProtocolError if there is too much of it."""
        if self._chunks is not None:
            return self._chunks.send(h11.Data(data=data)) or b""
        self._left -= len(data)
        if self._left < 0:
            raise h11.LocalProtocolError("Too much data for declared Content-Length")
        return data

    def end(self) -> bytes:
        """Return the end of the body as bytes. Raises h11.LocalProtocolError if the body is too short."""
        if self._chunks is not None:
            return self._chunks.send(h11.EndOfMessage()) or b""
        if self._left:
            raise h11.LocalProtocolError("Too little data for declared Content-Length")
        return b""
