"""The head of an HTTP request as plain data. No I/O."""

import re
from typing import Final

import attrs
import h11

from warren.base.values import frozen
from warren.transport.access.refusals import RefusedError

MAX_HEAD: Final = 16 * 1024
VERSIONS: Final = (b"1.0", b"1.1")
_ABSOLUTE: Final = re.compile(rb"\Ahttps?://[^/?]*/?", re.IGNORECASE)
"""The beginning of an address as clients send it to a proxy; a server has to take it too."""


@frozen
class Head:
    """The head of a request.

    Attributes:
        method: as sent.
        target: path and query, as sent; what is before them in an absolute address is left out.
        headers: names in lower case, values as sent.
        version: of HTTP, `1.0` or `1.1`.
    """

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    version: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def below(self, prefix: bytes) -> "Head":
        """Return the same with the path below a prefix; it is empty for the prefix itself, without a slash."""
        path = self.target.removeprefix(prefix)
        return attrs.evolve(self, target=path) if path != self.target and path[:1] in (b"/", b"?", b"") else self

    def lines(self, name: str) -> list[str]:
        """Return the values of a header, one for each line of the head."""
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self.headers if key == wanted]

    def values(self, name: str) -> list[str]:
        """Return the values of a header that holds a list, in order."""
        return [value.strip() for line in self.lines(name) for value in line.split(",") if value.strip()]


def head_of(request: h11.Request) -> Head:
    """Return the head of a request.

    Raises RefusedError for another version of HTTP, for a long head, and for an ambiguous body.
    """
    if request.http_version not in VERSIONS:
        raise RefusedError(505, "only HTTP/1.1 is spoken here")
    headers = tuple(request.headers)
    # h11 bounds a head that is not whole yet: one that comes in a single piece has no bound there.
    if len(request.target) + sum([len(name) + len(value) for name, value in headers]) > MAX_HEAD:
        raise RefusedError(431, f"the head has more than {MAX_HEAD} bytes")
    names = {name for name, _ in headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        # h11 goes by Transfer-Encoding; a proxy in front may go by the length and see another request in the body.
        problem = "Content-Length and Transfer-Encoding exclude each other"
        raise RefusedError(400, problem, field="$.headers.transfer-encoding")
    target = request.target
    if not target.startswith(b"/"):
        target = _ABSOLUTE.sub(b"/", target, count=1)
    return Head(request.method.decode("latin-1"), target, headers, request.http_version.decode("ascii"))
