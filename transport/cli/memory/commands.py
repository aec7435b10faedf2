"""`warren memory`: search, count, index anew, add and forget remembered texts."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import attrs
import click

from warren.base.errors import InvalidParamsError, MemoryDisabledError, SessionNotFoundError, WarrenError
from warren.base.values import define
from warren.calls.base import made
from warren.calls.facade import SessionService
from warren.calls.reading import ForgetRequest, Scope, SearchRequest
from warren.conversation import codec
from warren.conversation.memory import MemoryConfig, MemoryHit, MemoryStats
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.ids import LAST, resolve
from warren.transport.cli.memory.lines import AddedText, Defaults, InputLine, Wanted, read_lines
from warren.transport.cli.memory.remembered import open_memory
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, embedder_option, reached_options, remembered_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.store.chosen import has_place, memory_of, remembers, store_of
from warren.transport.cli.terminal.lines import PipedLines
from warren.transport.cli.terminal.progress import bar
from warren.transport.cli.terminal.questions import confirm
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import show_rows

if TYPE_CHECKING:
    from warren.storage.memory_store import MemoryStore

BEGIN: Final = """\
`warren run --memory PROMPT` begins one, and so does memory = true in the configuration file: it gets the messages that
compaction takes out of the context. `warren memory add` takes texts from stdin:
echo '{"content": "the key hangs by the door"}' | warren memory add"""
COLUMNS: Final = ("score", "words", "likeness", "session", "turn", "id", "text")
AT_ONCE: Final = 256
"""Texts that are stored in one transaction."""
Find = Callable[[str, int, str | None], Awaitable[Sequence[MemoryHit]]]
"""A search: the query, the most hits, and the session to search, None for all of them."""


@click.group(cls=CommandGroup)
def memory() -> None:
    """Search the memory, and look after it.

    These commands open the memory of the store themselves; a gateway may use it at the same time. Only `search` and
    `forget` can ask a gateway with --server.
    """


@command(
    'warren memory search "which doors are blue"',
    'warren memory search "which doors are blue" --session last --limit 3',
    "warren memory search --batch < queries.jsonl",
    name="search",
    of=memory,
)
@click.argument("query", type=text_of, required=False)
@click.option("--session", type=text_of, metavar="ID", help="Search this session: its id, the end of it, or `last`.")
@of_field(
    SearchRequest, "scope", note="By default the session of --session, else all.", variable=False, show_default=False
)
@of_field(SearchRequest, "limit", variable=False, default=attrs.fields(SearchRequest).limit.default)
@click.option("--batch", is_flag=True, help="Read queries from stdin, one JSON object a line.")
@embedder_option
@reached_options
def memory_search(
    query: str | None, session: str | None, scope: str | None, limit: int, *, batch: bool, options: Options
) -> None:
    """Find remembered texts by their meaning, best first.

    Piped, each hit is a line of fields between tabs: score, its parts by words and by likeness of the vectors (- if
    vectors were not weighed), session, turn, id, text.

    With --batch each line of stdin is {"query", "limit"?, "scope"?, "session_id"?}, and each line of stdout a JSON list
    of its hits {"content", "score", "session_id", "turn", "text_id", "parts"}. A bad line ends it with exit code 2 and
    an error that names the line and the field. Blank lines are skipped.
    """
    if (query is None) != batch:
        raise click.UsageError("give either a QUERY or --batch.")
    if scope == "session" and session is None and not batch:
        raise click.UsageError("--scope session needs --session.")
    asked = Defaults(session, scope, limit)
    if query is None:
        _search_batch(options, asked)
    else:
        _search(options, query, asked)


def _search(options: Options, query: str, asked: Defaults) -> None:
    """Run `warren memory search QUERY`.

    Raises InvalidParamsError for a query without words, SessionNotFoundError for an unknown session, and
    MemoryDisabledError if there is no memory.
    """
    if not query.strip():
        raise InvalidParamsError.at("$.query", "must not be empty")
    opened = _searching(options, asked.session)

    async def work() -> Sequence[MemoryHit]:
        async with opened as (find, session):
            return await find(query, asked.limit, None if asked.scope == "project" else session)

    hits = execute(work, options)
    show_result(options, {"hits": codec.to_data(hits)}, show_rows, COLUMNS, list(map(_row, hits)), "nothing found")


def _search_batch(options: Options, asked: Defaults) -> None:
    """Run `warren memory search --batch`. Raises InvalidParamsError for a bad line, after the hits of earlier ones."""
    opened, streams = _searching(options, asked.session), Streams()

    async def work() -> None:
        async with opened as (find, session), aclosing(read_lines(PipedLines(), Wanted)) as lines:
            defaults = attrs.evolve(asked, session=session)
            async for line in lines:
                streams.write(codec.encode(await _find(find, line, defaults)).decode() + "\n")

    execute(work, options)


@command(
    "warren memory forget last --turn 3",
    "warren memory forget 4f9c --id 12",
    "warren memory forget 4f9c --yes",
    note=ID_HELP,
    name="forget",
    of=memory,
)
@click.argument("session", metavar="SESSION", type=text_of)
@of_field(ForgetRequest, "turn", variable=False)
@of_field(ForgetRequest, "text_id", "--id", "text_id", variable=False, metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal nothing is asked.")
@reached_options
def memory_forget(session: str, turn: int | None, text_id: str | None, *, yes: bool, options: Options) -> None:
    """Remove remembered texts of a session for good: one, those of a turn, or all that are remembered now.

    They do not come back: neither by a later compaction, nor if they are added again. The messages stay in the history
    of the session.
    """
    wanted = made(ForgetRequest, session, turn=turn, text_id=text_id)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        which = "all texts" if turn is None and text_id is None else "these texts"
        confirm(f"Forget {which} of session {session} for good?")
    if options.server is None:
        _config(options)
        # Any embedder will do: forgetting needs no index, and the index skips forgotten texts.
        options = attrs.evolve(
            options, config=attrs.evolve(options.config, memory=MemoryConfig()), memory=MemoryConfig()
        )

    async def work() -> int:
        async with open_service(options, takes_up=False) as service:
            return await service.perform(attrs.evolve(wanted, session_id=await _session(service, session)))

    forgotten = execute(work, options)
    show_text(options, {"forgotten": forgotten}, f"forgot {forgotten}\n")


@command("warren memory stats", "warren memory stats --output json", name="stats", of=memory)
@remembered_options
def memory_stats(options: Options) -> None:
    """Show the size of the memory and of its index."""
    config = _config(options)

    async def work() -> MemoryStats:
        async with open_memory(config) as store:
            return await store.stats()

    data = codec.to_data(execute(work, options))
    lines = (f"{name.replace('_', ' ') + ':':<16} {'-' if value is None else value}\n" for name, value in data.items())
    show_text(options, data, "".join(lines))


@command("warren memory rebuild", "warren memory rebuild --embedder bag-of-words", name="rebuild", of=memory)
@remembered_options
def memory_rebuild(options: Options) -> None:
    """Make the index anew from the remembered texts, by the named embedder.

    The texts do not change. After an interrupt it goes on when the memory is used next.
    """
    config = _config(options)

    async def work() -> MemoryStats:
        async with open_memory(config) as store:
            with bar(Streams(), "indexing") as progress:
                await store.rebuild(progress)
            return await store.stats()

    show_text(options, codec.to_data(execute(work, options)), "")


@command(
    """echo '{"content": "the key hangs by the door"}' | warren memory add""",
    "warren memory add --store conversations < notes.jsonl",
    name="add",
    of=memory,
)
@remembered_options
def memory_add(options: Options) -> None:
    """Remember texts from stdin, one JSON object a line.

    Each is {"content", "session_id"?, "turn"?}; without a session they belong to `added`, without a turn to turn 0. The
    same content for the same turn of a session is remembered once, so that the same input can be given again. A bad
    line ends it with exit code 2 and an error that names the line and the field: the lines before it are remembered,
    it and those behind it are not. Blank lines are skipped.
    """
    config = _config(options, needed=False)

    async def work() -> Adding:
        async with open_memory(config) as store:
            adding = Adding(store)
            await adding.take_all()
            with bar(Streams(), "indexing") as progress:
                await store.catch_up(progress)
            return adding

    done = execute(work, options)
    data = {"lines": done.taken, "added": done.added}
    show_text(options, data, f"added {done.added} of {done.taken}\n")


@define(eq=False)
class Adding:
    """Texts on their way from stdin into the memory, many in one transaction.

    Attributes:
        taken: number of lines that are remembered.
        added: number of those that are new.
    """

    store: "MemoryStore"
    taken: int = 0
    added: int = 0
    _waiting: list[InputLine[AddedText]] = attrs.field(factory=list)

    async def take_all(self) -> None:
        """Remember all lines of stdin. Raises InvalidParamsError, or the error of a refused part."""
        try:
            async with aclosing(read_lines(PipedLines(), AddedText)) as lines:
                async for line in lines:
                    self._waiting.append(line)
                    if len(self._waiting) == AT_ONCE:
                        await self._flush()
        except InvalidParamsError as exc:
            await self._flush()
            known = f"{exc.message}; the lines before it are remembered, it and those behind it are not"
            raise InvalidParamsError(known, path=exc.path) from None
        await self._flush()

    async def _flush(self) -> None:
        lines, self._waiting = self._waiting, []
        now = datetime.now(UTC)
        try:
            self.added += await self.store.index([line.value.entry(now) for line in lines])
        except WarrenError as exc:
            again = exc.copy()
            again.message = f"{exc.message}; line {lines[0].number} and those behind it are not remembered"
            raise again from exc
        self.taken += len(lines)


def _config(options: Options, *, needed: bool = True) -> MemoryConfig:
    """Return the settings of the store's memory.

    Raises MemoryDisabledError as `memory_of`, and if a needed memory does not exist: the sessions of this store run
    without the capability. Raises PersistenceDisabledError if the options ask for no store.
    """
    memory_of(options, None)  # a missing extra is the first error to report
    store = store_of(options, needed=True)
    config = memory_of(options, store)
    if needed and store is not None and not remembers(store):
        raise MemoryDisabledError(f"there is no memory at {config.place} yet", details={"hint": BEGIN})
    return config


def _searching(options: Options, name: str | None) -> AbstractAsyncContextManager[tuple[Find, str | None]]:
    """Open the memory of the store, or connect to the server; yields its search, and the id of a named session.

    Raises as `_config` before it is entered.
    """
    return _at_server(options, name) if options.server is not None else _in_store(options, _config(options), name)


@asynccontextmanager
async def _at_server(options: Options, name: str | None) -> AsyncIterator[tuple[Find, str | None]]:
    async with open_service(options, takes_up=False) as service:

        async def find(query: str, limit: int, within: str | None) -> Sequence[MemoryHit]:
            scope: Scope = "project" if within is None else "session"
            return await service.search_memory(query, session_id=within, scope=scope, limit=limit)

        yield find, None if name is None else await _session(service, name)


@asynccontextmanager
async def _in_store(options: Options, config: MemoryConfig, name: str | None) -> AsyncIterator[tuple[Find, str | None]]:
    session = name
    if name is not None and (name.strip().lower() == LAST or has_place(options)):
        async with open_service(options, stored=True, takes_up=False) as service:
            session = await _session(service, name)
    async with open_memory(config) as store:
        tenant = options.user.tenant
        yield lambda query, limit, within: store.search(query, limit=limit, session_id=within, tenant=tenant), session


async def _session(service: SessionService, name: str) -> str:
    """Return the id of a named session. An unknown name is returned as it is: it may still have memories."""
    try:
        return await resolve(service, name)
    except SessionNotFoundError:
        if name.strip().lower() == LAST:
            raise
        return name


async def _find(find: Find, line: InputLine[Wanted], defaults: Defaults) -> Sequence[MemoryHit]:
    with line.named():
        within = line.value.within(defaults)
    return await find(line.value.query, line.value.limit or defaults.limit, within)


def _row(hit: MemoryHit) -> tuple[str, ...]:
    likeness = "-" if hit.parts.likeness is None else f"{hit.parts.likeness:.3f}"
    scores = (f"{hit.score:.3f}", f"{hit.parts.words:.3f}", likeness)
    return (*scores, hit.session_id, str(hit.turn), hit.text_id, hit.content)
