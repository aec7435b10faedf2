"""One connection to a PostgreSQL server on trio: libpq's own steps, waited for by trio.

Neither asyncio nor a thread takes part, except that trio looks names up in a thread: libpq would block the loop for it.
"""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import trio
from psycopg import errors, generators, pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from warren.config import PostgresConfig
from warren.errors import StoreError
from warren.values import define

Value = str | int | bool | None
Row = tuple[Any, ...]
Statement = tuple[Any, ...]
"""A text of SQL, and its values."""
NUL: Final = "\0"
LEAST_IDLE: Final = 1000
"""Milliseconds that a transaction may always wait for its process, however short its leases are."""
# PostgreSQL holds no NUL in a text. It is written as two characters, of which the first one is rare.
_MARK: Final = "\x01"
_BEGIN_READ: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_OK: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
# A server whose machine vanished answers nothing: the system gives a silent connection up after these times.
_KEEPALIVE: Final = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}


class LostError(Exception):
    """The connection broke, or the server gave no answer in time: the outcome of the call is unknown."""


def escaped(text: str) -> str:
    """Return a text as PostgreSQL can hold it; texts that differ stay different."""
    if NUL not in text and _MARK not in text:
        return text
    return text.replace(_MARK, _MARK + "1").replace(NUL, _MARK + "0")


def unescaped(text: str) -> str:
    """Return the text that `escaped` has changed."""
    if _MARK not in text:
        return text
    head, *rest = text.split(_MARK)
    return head + "".join((NUL if part[:1] == "0" else _MARK) + part[1:] for part in rest)


def array(values: Sequence[Value | bytes]) -> str:
    """Return the literal of an array; bytes are texts in UTF-8.

    psycopg's own dumpers take six times as long for large groups. A column of texts is joined first and escaped as a
    whole, which takes a third of the time that its texts take one by one: this work keeps the event loop.
    """
    kinds = set(map(type, values))
    if kinds == {str}:
        joined = NUL.join(cast("Sequence[str]", values))
    elif kinds == {bytes}:
        joined = b"\0".join(cast("Sequence[bytes]", values)).decode()
    elif kinds == {int}:
        return "{" + ",".join(map(str, values)) + "}"
    else:
        return "{" + ",".join(map(_element, values)) + "}"
    if joined.count(NUL) != len(values) - 1:  # a text that is not `escaped` would become two elements
        raise ValueError("a text has a NUL, which PostgreSQL cannot hold")
    return '{"' + joined.replace("\\", "\\\\").replace('"', '\\"').replace(NUL, '","') + '"}'


def _element(value: Value | bytes) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str | bytes):
        return array([value])[1:-1]
    return ("t" if value else "f") if isinstance(value, bool) else str(value)


def _encoded(value: Value) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return (b"t" if value else b"f") if isinstance(value, bool) else b"%d" % value


@define(eq=False)
class Connection:
    """A connection, for one task at a time. No call can be cancelled: each ends by itself, within `timeout` seconds.

    Attributes:
        timeout: seconds that one statement may take.
    """

    _pgconn: PGconn
    timeout: float
    _prepared: dict[tuple[str, bool], bytes] = attrs.field(factory=dict)
    _rows: Any = attrs.field(factory=Transformer)

    @classmethod
    async def open(cls, config: PostgresConfig, name: str) -> "Connection":
        """Connect, within the `timeout` of the settings; `name` is shown in the server's list of connections.

        Raises StoreError for a malformed address, LostError, and psycopg's Error for a refusal of a setting. None of
        them shows the password.
        """
        params = await _looked_up(parameters(config.url, name), config.timeout)
        with trio.move_on_after(config.timeout) as scope:
            scope.shield = True
            pgconn = await _connected(make_conninfo("", **params))
            try:
                db = cls(pgconn, config.timeout)
                lock, statement = (max(1, round(each * 1000)) for each in (config.lock_timeout, config.timeout))
                # A process that hangs within a transaction must not keep the locks of sessions beyond its leases.
                idle = max(LEAST_IDLE, round(config.lease * 1000 / 2))
                await db.script(
                    f"SET lock_timeout = {lock}; SET statement_timeout = {statement}; "
                    f"SET idle_in_transaction_session_timeout = {idle}"
                )
            except BaseException:
                pgconn.finish()
                raise
            return db
        raise LostError(f"the server did not answer within {config.timeout:g} s")

    @property
    def usable(self) -> bool:
        """Whether it is neither closed nor broken."""
        return bool(self._pgconn.status == pq.ConnStatus.OK)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or has failed and waits for its end."""
        return bool(self._pgconn.transaction_status != pq.TransactionStatus.IDLE)

    def parameter(self, name: str) -> str:
        """Return a setting that the server has announced, such as `server_encoding`; empty if it has not."""
        return (self._pgconn.parameter_status(name.encode()) or b"").decode()

    async def fetch(self, sql: str, *values: Value) -> list[Row]:
        """Run a statement with parameters $1, $2 and so on; it is parsed by the server once for each connection.

        Raises LostError, and psycopg's Error for a refusal of the server.
        """
        name = await self._prepare(sql)
        parameters = [_encoded(value) for value in values]
        results = await self._run(lambda: self._pgconn.send_query_prepared(name, parameters))
        return self._loaded(results[-1])

    async def fetch_each(self, *statements: Statement) -> list[list[Row]]:
        """Run statements that read, in one round trip, and return the rows of each; all see one state.

        Raises as `fetch`.
        """
        prepared = [
            (await self._prepare(sql, role=True), [_encoded(value) for value in values]) for sql, *values in statements
        ]

        def send() -> None:
            self._pgconn.enter_pipeline_mode()
            self._pgconn.send_query_params(_BEGIN_READ, None)
            for name, parameters in prepared:
                self._pgconn.send_query_prepared(name, parameters)
            self._pgconn.send_query_params(b"COMMIT", None)
            self._pgconn.pipeline_sync()

        try:
            results = await self._run(send, _pipelined)
        finally:
            await self.roll_back()
        return [self._loaded(result) for result in results[1:-1]]

    async def _prepare(self, sql: str, *, role: bool = False) -> bytes:
        """Return the name of a prepared statement; a plan is made for one role, so those that change it have others."""
        key = (sql, role)
        name = self._prepared.get(key)
        if name is None:
            name = b"w%d" % len(self._prepared)
            await self._run(lambda: self._pgconn.send_prepare(name, sql.encode()))
            self._prepared[key] = name
        return name

    def _loaded(self, result: PGresult) -> list[Row]:
        if not result.ntuples:
            return []
        self._rows.set_pgresult(result)
        rows: list[Row] = self._rows.load_rows(0, result.ntuples, tuple)
        return rows

    async def script(self, sql: str) -> int:
        """Run statements without parameters in one round trip; return how many rows the last one changed.

        Raises as `fetch`.
        """
        results = await self._run(lambda: self._pgconn.send_query(sql.encode()))
        return results[-1].command_tuples or 0 if results else 0

    async def roll_back(self) -> None:
        """End a transaction, if there is one, without its changes. A connection that cannot do so is closed."""
        try:
            if self.usable and self.in_transaction:
                await self.script("ROLLBACK")
        except (LostError, errors.Error):
            self.close()

    def close(self) -> None:
        """Close it. Idempotent; the server drops all that was not committed."""
        self._pgconn.finish()

    async def _run(self, send: Any, steps: Any = generators.execute) -> list[PGresult]:
        if not self.usable:
            raise LostError("the connection is closed")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.timeout + 1) as scope:
            try:
                send()
                results: list[PGresult] = await _driven(steps(self._pgconn), self._pgconn)
            except errors.OperationalError as exc:
                self._break()
                raise LostError(str(exc).strip()) from exc
            except (OSError, trio.BusyResourceError, trio.ClosedResourceError) as exc:
                self._break()
                raise LostError(f"the connection broke ({exc})") from exc
        if scope.cancelled_caught:
            self._break()
            raise LostError(f"the server did not answer within {self.timeout:g} s")
        for result in results:
            if result.status not in _OK:
                raise self._error(result)
        if not results:
            self._break()
            raise LostError("the connection broke")
        return results

    def _error(self, result: PGresult) -> Exception:
        error: Exception = errors.error_from_result(result)
        if isinstance(error, _ENDINGS) or not self.usable:
            self._break()
            return LostError(str(error).strip())
        return error

    def _break(self) -> None:
        with contextlib.suppress(errors.Error):
            self._pgconn.finish()


_ENDINGS: Final = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)


# -- waiting


async def _driven(steps: "Generator[Any, Any, Any]", pgconn: PGconn) -> Any:
    """Run a generator of psycopg, which yields the state that its socket has to reach."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(await _ready(pgconn.socket, wanted))
    except StopIteration as stop:
        return stop.value


def _pipelined(pgconn: PGconn) -> "Generator[Any, Any, list[PGresult]]":
    """Send a pipeline and return the result of each of its statements, in order; those behind an error are errors."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while pgconn.status == pq.ConnStatus.OK:
        result = yield from generators.fetch(pgconn)
        if result is None:  # the end of one statement
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            pgconn.exit_pipeline_mode()
            return results
        results.append(result)
    return []


async def _ready(socket: int, wanted: Wait) -> Ready:
    if wanted == Wait.R:
        await trio.lowlevel.wait_readable(socket)
        return Ready.R
    if wanted == Wait.W:
        await trio.lowlevel.wait_writable(socket)
        return Ready.W
    return await _either(socket)


async def _either(socket: int) -> Ready:
    """Wait until a socket can be read or written: only a statement that fills the system's buffer comes here."""
    ready = Ready.NONE

    async def wait(wait_for: Any, flag: Ready) -> None:
        nonlocal ready
        await wait_for(socket)
        ready = Ready(ready | flag)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, trio.lowlevel.wait_readable, Ready.R)
        nursery.start_soon(wait, trio.lowlevel.wait_writable, Ready.W)
    return ready


# -- connecting


def parameters(url: str, name: str) -> dict[str, str]:
    """Return the parameters of a connection that is shown under a name. Raises StoreError for a malformed address."""
    parsed: Mapping[str, Any] | None = None
    with contextlib.suppress(errors.ProgrammingError):  # its text may have a part of the password
        parsed = conninfo_to_dict(url)
    if parsed is None:
        problem = "the address of the database is malformed: write special characters of a password as %XX"
        raise StoreError(problem, cause="cannot_open", retryable=False)
    given = {key: str(value) for key, value in parsed.items() if value is not None}
    return {**_KEEPALIVE, "application_name": f"warren: {name}"[:63], **given, "client_encoding": "UTF8"}


async def _looked_up(params: dict[str, str], timeout: float) -> dict[str, str]:  # noqa: ASYNC109 - the setting's name
    """Return the parameters with the addresses of all hosts; libpq tries one after the other.

    Raises LostError if no host has an address.
    """
    host = params.get("host") or _environment("host")
    if "hostaddr" in params or _environment("hostaddr") or not host or params.get("service"):
        return params
    ports = (params.get("port") or _environment("port") or "5432").split(",")
    hosts = host.split(",")
    found: list[tuple[str, str, str]] = []
    problem = ""
    for number, each in enumerate(hosts):
        port = ports[number] if len(ports) == len(hosts) else ports[0]
        if each.startswith(("/", "@")) or not each:
            found.append((each, "", port))
            continue
        with trio.move_on_after(timeout):
            try:
                every = await trio.socket.getaddrinfo(each, int(port or 5432), type=trio.socket.SOCK_STREAM)
            except OSError as exc:
                problem = f"the address of the host {each} cannot be found ({exc.strerror or exc})"
            else:
                found += [(each, cast("str", address[4][0]), port) for address in every]
    if not found:
        raise LostError(problem or f"the address of the host {host} was not found within {timeout:g} s")
    names, addresses, numbers = zip(*found, strict=True)
    more = {"hostaddr": ",".join(addresses)} if any(addresses) else {}
    return {**params, "host": ",".join(names), "port": ",".join(numbers), **more}


def _environment(keyword: str) -> str:
    """Return a parameter that libpq takes from the environment; empty if there is none."""
    options = {option.keyword: option.val for option in pq.Conninfo.get_defaults()}
    return (options.get(keyword.encode()) or b"").decode()


async def _connected(conninfo: str) -> PGconn:
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        connected = await _polled(pgconn)
    except BaseException:
        pgconn.finish()
        raise
    if not connected:
        problem = pgconn.get_error_message().strip()
        pgconn.finish()
        raise LostError(problem)
    pgconn.nonblocking = 1
    return pgconn


async def _polled(pgconn: PGconn) -> bool:
    """Return whether the connection was made. Its socket changes from one address to the next."""
    while pgconn.status != pq.ConnStatus.BAD:
        state = pgconn.connect_poll()
        if state == pq.PollingStatus.READING:
            await trio.lowlevel.wait_readable(pgconn.socket)
        elif state == pq.PollingStatus.WRITING:
            await trio.lowlevel.wait_writable(pgconn.socket)
        else:
            return bool(state == pq.PollingStatus.OK)
    return False
