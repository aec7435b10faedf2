"""One connection to a PostgreSQL server on trio: libpq's own steps, waited for by trio.

Neither asyncio nor a thread takes part, except that trio looks names up in a thread: libpq would block the loop for it.
"""

import contextlib
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any, Final, cast

import attrs
import trio
from psycopg import errors, generators, pq
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from warren.base.values import define
from warren.settings.config import PostgresConfig
from warren.storage.postgres import session
from warren.storage.postgres.servers import Address, Attempt, Server, addresses

Value = str | int | bool | None
Row = tuple[Any, ...]
Statement = tuple[Any, ...]
"""A text of SQL, and its values."""
NUL: Final = "\0"
# PostgreSQL holds no NUL in a text. It is written as two characters, of which the first one is rare.
_MARK: Final = "\x01"
_BEGIN_READ: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_OK: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class LostError(Exception):
    """The connection broke, or the server gave no answer in time: the outcome of the call is unknown."""


class WrongServerError(LostError):
    """The server is not the one that can store now: the call changed nothing, and the connection is closed."""


class ReadOnlyServerError(WrongServerError):
    """The server is a standby, or its operator has made it read-only."""


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
        notices: sentences about defaults of the role or the database that this session does not have.
    """

    _pgconn: PGconn
    timeout: float
    notices: tuple[str, ...] = ()
    _writable: bool = False
    _prepared: dict[tuple[str, bool], bytes] = attrs.field(factory=dict)
    _rows: Any = attrs.field(factory=Transformer)

    @classmethod
    async def open(cls, config: PostgresConfig, name: str, *, reads: bool = False) -> "Connection":
        """Connect to the first server of the address that answers and can be written, within the `timeout`.

        Each server, and each address of a name, has its share of the time that is left.

        Args:
            config: the settings.
            name: shown in the server's list of connections.
            reads: whether a server that cannot be written will do if there is no other one.

        Raises StoreError for a malformed address, LostError, and psycopg's Error for a refusal of a setting. None of
        them shows the password.
        """
        address = Address.of(config.url, name)
        deadline = trio.current_time() + config.timeout
        found, problems = await _looked_up(address, config.timeout / 2)
        attempts = address.attempts(found, reads=reads)
        # Shielded: a connection that opens after its caller left would belong to nobody. `share` bounds each attempt.
        with trio.CancelScope(shield=True):
            for number, attempt in enumerate(attempts):
                share = address.share(deadline - trio.current_time(), len(attempts) - number)
                try:
                    return await cls._open(config, attempt, share)
                except LostError as exc:
                    problems.append(exc)
        raise failure(problems)

    @classmethod
    async def _open(cls, config: PostgresConfig, attempt: Attempt, seconds: float) -> "Connection":
        with trio.move_on_after(seconds):
            db = cls(await _connected(attempt.conninfo), config.timeout)
            try:
                await db._begin(session.script(config), attempt)
            except BaseException:
                db.close()
                raise
            return db
        attempt.note_silence()
        raise LostError(attempt.failed(f"no answer within {seconds:.3g} s"))

    async def _begin(self, script: str, attempt: Attempt) -> None:
        *_, replaced, state = await self._exchange(lambda: self._pgconn.send_query(script.encode()))
        self.notices = tuple(session.replaced(self._loaded(replaced)))
        self._writable = attempt.writable
        problem = session.unwritable(*self._loaded(state)[0]) if attempt.writable else None
        if problem is not None:
            raise ReadOnlyServerError(attempt.failed(problem))

    @property
    def usable(self) -> bool:
        """Whether it is neither closed nor broken, and its server has not become one that cannot be written.

        Reads would go on at such a server, beside the one that has taken its place.
        """
        return bool(self._pgconn.status == pq.ConnStatus.OK) and not self._is_demoted

    @property
    def _is_demoted(self) -> bool:
        return self._writable and any(self._pgconn.parameter_status(each) == b"on" for each in session.READ_ONLY)

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

    async def value(self, sql: str, *values: Value) -> Any:
        """Return the first column of the first row of a statement; None without rows. Raises as `fetch`."""
        rows = await self.fetch(sql, *values)
        return rows[0][0] if rows else None

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

    @contextlib.asynccontextmanager
    async def transaction(self, begin: str = "BEGIN") -> AsyncIterator[None]:
        """Commit what the block does, or nothing of it if the block raises. Raises as `fetch`."""
        await self.script(begin)
        try:
            yield
            await self.script("COMMIT")
        finally:
            await self.roll_back()

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
        # Shielded: the protocol has no place to stop at within a statement. The server's timeout is a second less.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.timeout + 1):
            return await self._exchange(send, steps)
        self._break()
        raise LostError(f"the server did not answer within {self.timeout:g} s")

    async def _exchange(self, send: Any, steps: Any = generators.execute) -> list[PGresult]:
        if self._pgconn.status != pq.ConnStatus.OK:
            raise LostError("the connection is closed")
        if self._is_demoted:
            self._break()
            raise ReadOnlyServerError("the server takes no writes any more")
        try:
            send()
            results: list[PGresult] = await _driven(steps(self._pgconn), self._pgconn)
        except errors.OperationalError as exc:
            self._break()
            raise LostError(str(exc).strip()) from exc
        except (OSError, trio.BusyResourceError, trio.ClosedResourceError) as exc:
            self._break()
            raise LostError(f"the connection broke ({exc})") from exc
        for result in results:
            if result.status not in _OK:
                raise self._error(result)
        if not results:
            self._break()
            raise LostError("the connection broke")
        return results

    def _error(self, result: PGresult) -> Exception:
        error: Exception = errors.error_from_result(result)
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        ends = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")
        if not ends and code not in _REFUSALS and not code.startswith(_ENDINGS) and self.usable:
            return error
        self._break()
        return _REFUSALS.get(code, LostError)(str(error).strip())

    def _break(self) -> None:
        with contextlib.suppress(errors.Error):
            self._pgconn.finish()


# Answers of a server that was demoted or is exchanged, and of a pooler in front of it. They end the connection, because
# it would lead to that server for as long as it lives.
_REFUSALS: Final[dict[str, type[LostError]]] = {
    "25006": ReadOnlyServerError,
    "3D000": WrongServerError,  # the database is not there
    "53300": WrongServerError,  # too many connections
    "57P03": WrongServerError,  # cannot connect now
}
_ENDINGS: Final = ("08", "57P")
"""Codes of lost connections and of servers that end. A pooler uses the first also in the middle of a statement."""


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


async def _looked_up(address: Address, seconds: float) -> tuple[list[Server], list[LostError]]:
    """Return the servers with the addresses of their names, and the errors of names that have none; all at once."""
    found: dict[Server, list[Server]] = {each: [] if each.is_name else [each] for each in address.servers}
    late = TimeoutError(f"no answer within {seconds:.3g} s")
    problems = {each: unknown(each, late) for each in found if each.is_name}

    async def look_up(server: Server) -> None:
        try:
            every = await trio.socket.getaddrinfo(server.host, int(server.port), type=trio.socket.SOCK_STREAM)
            found[server] = list(addresses(server, every))
            del problems[server]
        except (OSError, UnicodeError) as exc:
            problems[server] = unknown(server, exc)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for each in list(problems):
                nursery.start_soon(look_up, each)
    return [server for each in address.servers for server in found[each]], list(problems.values())


def unknown(server: Server, exc: Exception) -> LostError:
    """Return the error for a name without an address."""
    return LostError(f"the address of the host {server.host} cannot be found ({getattr(exc, 'strerror', '') or exc})")


def failure(problems: Sequence[LostError]) -> LostError:
    """Return one error for all attempts."""
    if len(problems) == 1:
        return problems[0]
    kind = next((type(each) for each in problems if isinstance(each, WrongServerError)), LostError)
    return kind("; ".join(str(each).partition("\n")[0] for each in problems))


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
