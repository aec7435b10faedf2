"""The servers that the address of a database names, in the order in which they are tried. No network.

libpq alone would give all the time to the first server that takes a connection and says nothing: it knows no
`connect_timeout` for connections that do not block. So each host and each of its addresses is an attempt of its own.
"""

import contextlib
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from warren.base.errors import StoreError
from warren.base.values import frozen

SILENT_FOR: Final = 30.0
"""Seconds for which a server that gave no answer is tried after the others: most connections would wait for it anew."""
LEAST: Final = 0.5
"""Seconds that each attempt has at least."""
# A server whose machine vanished answers nothing: the system gives a silent connection up after these times.
_KEEPALIVE: Final = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
_NO_MODE: Final = "none"
"""A value of `sslmode` that libpq refuses once it has read all variables and files, and before it looks up a name."""
_WRITABLE: Final = ("read-write", "primary")


@frozen
class Server:
    """One place to connect to.

    Attributes:
        host: the name, for certificates and passwords; the folder of a Unix socket.
        address: the IP address; empty for a Unix socket, and if the name has not been looked up.
        port: the port.
    """

    host: str
    address: str
    port: str

    @property
    def is_name(self) -> bool:
        """Whether its address has to be looked up."""
        return not self.address and bool(self.host) and not self.host.startswith(("/", "@"))

    def __str__(self) -> str:
        """Return it as libpq's messages name a server."""
        if not self.address:
            return f'on socket "{self.host}/.s.PGSQL.{self.port}"' if self.host else f"on the local socket {self.port}"
        number = "" if self.host in ("", self.address) else f" ({self.address})"
        return f'at "{self.host or self.address}"{number}, port {self.port}'


_silent: Final[dict[Server, float]] = {}
"""The servers of the process that gave no answer, and when each counts as one of the others again."""


@frozen
class Attempt:
    """One try to connect.

    Attributes:
        server: the server.
        conninfo: the parameters of the connection, as one text.
        writable: whether the server has to be one that can be written.
    """

    server: Server
    conninfo: str
    writable: bool

    def failed(self, problem: str) -> str:
        """Return the message for a failure, worded as libpq's."""
        return f"connection to server {self.server} failed: {problem}"

    def note_silence(self) -> None:
        """Have the server tried after the others for a while."""
        now = time.monotonic()
        for each in [each for each, until in _silent.items() if until < now]:
            del _silent[each]
        _silent[self.server] = now + SILENT_FOR


@frozen
class Address:
    """The address of a database, with all that libpq's variables and files add to it.

    Attributes:
        servers: the hosts in order.
        limit: seconds for one attempt, by `connect_timeout`; infinite if it is not set.
    """

    servers: tuple[Server, ...]
    limit: float
    _given: Mapping[str, str]
    _wanted: str
    _shuffled: bool

    @classmethod
    def of(cls, url: str, name: str) -> "Address":
        """Return the address of connections that are shown under a name. Raises StoreError for a malformed one."""
        parsed: Mapping[str, Any] | None = None
        with contextlib.suppress(errors.ProgrammingError):  # its text may have a part of the password
            parsed = conninfo_to_dict(url)
        if parsed is None:
            raise _malformed("write special characters of a password as %XX")
        given = {key: str(value) for key, value in parsed.items() if value is not None}
        found = _completed(given)
        wanted = given.get("target_session_attrs") or found.get("target_session_attrs", "any")
        if wanted in _WRITABLE or (wanted == "any" and "target_session_attrs" not in given):
            wanted = ""
        shown = {"application_name": f"warren: {name}"[:63]}
        return cls(
            tuple(_servers(found)),
            _limit(found.get("connect_timeout", "")),
            {**_KEEPALIVE, **shown, **given, "client_encoding": "UTF8"},
            wanted,
            found.get("load_balance_hosts") == "random",
        )

    def attempts(self, servers: Iterable[Server], *, reads: bool = False) -> list[Attempt]:
        """Return the attempts to connect to servers whose names were looked up.

        A server has to be writable, unless the address says otherwise (`target_session_attrs`). If the caller only
        `reads`, any server will do after all writable ones were looked for.
        """
        order = list(servers)
        if self._shuffled:
            random.shuffle(order)
        now = time.monotonic()
        order.sort(key=lambda each: _silent.get(each, 0) > now)
        if self._wanted == "prefer-standby":
            rounds = [("standby", False), ("any", False)]
        elif self._wanted:
            rounds = [(self._wanted, False)]
        else:
            rounds = [("any", True), ("any", False)] if reads else [("any", True)]
        return [Attempt(each, self._conninfo(each, wanted), writable) for wanted, writable in rounds for each in order]

    def share(self, left: float, attempts: int) -> float:
        """Return the seconds for the next attempt, if `left` seconds remain for all of them."""
        return min(max(LEAST, left / attempts), self.limit)

    def _conninfo(self, server: Server, wanted: str) -> str:
        place = {"host": server.host, "port": server.port, "target_session_attrs": wanted}
        return make_conninfo("", **{**self._given, **place, **({"hostaddr": server.address} if server.address else {})})


def addresses(server: Server, found: Iterable[Sequence[Any]]) -> Iterator[Server]:
    """Return a server once for each address that `getaddrinfo` has found."""
    return (Server(server.host, str(each[4][0]), server.port) for each in found)


def _completed(given: Mapping[str, str]) -> dict[str, str]:
    """Return all parameters with a value, whatever they come from: the address, a service file, the environment.

    libpq reads them when a connection begins, and shows them afterwards.
    """
    stopped = pq.PGconn.connect_start(make_conninfo("", **{**given, "sslmode": _NO_MODE}).encode())
    try:
        found = {each.keyword.decode(): each.val.decode() for each in stopped.info if each.val}
        if not found:
            raise _malformed(stopped.get_error_message().strip())
    finally:
        stopped.finish()
    return found


def _servers(found: Mapping[str, str]) -> list[Server]:
    hosts, numbers, ports = (found.get(each, "").split(",") for each in ("host", "hostaddr", "port"))
    if "hostaddr" not in found:
        numbers = [""] * len(hosts)
    elif "host" not in found:
        hosts = [""] * len(numbers)
    if len(ports) == 1:
        ports *= len(hosts)
    if not len(hosts) == len(numbers) == len(ports):
        raise _malformed(f"it has {len(hosts)} hosts, {len(numbers)} hostaddrs and {len(ports)} ports")
    if bad := [each for each in ports if each and not each.isdigit()]:
        raise _malformed(f"the port {bad[0]!r} is not a number")
    return [Server(*each) for each in zip(hosts, numbers, (port or "5432" for port in ports), strict=True)]


def _limit(given: str) -> float:
    if given and not given.lstrip("-").isdigit():
        raise _malformed(f"connect_timeout must be a whole number of seconds, and is {given!r}")
    return float(given) if given and int(given) > 0 else math.inf


def _malformed(problem: str) -> StoreError:
    return StoreError(f"the address of the database is malformed: {problem}", cause="cannot_open", retryable=False)
