"""The findings of an examination of a store, as plain values."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Generic, Literal, TypeVar

import attrs

from warren.base.values import frozen


@frozen
class Finding:
    """Something that is not as it should be.

    Attributes:
        check: the subject of the check, in one word.
        message: the problem, for a person.
        level: "problem", or "notice" for a finding that does no harm or ends by itself.
        fixable: whether `fix` does something about it.
        sessions: those concerned, as far as any are.
    """

    check: str
    message: str
    level: Literal["problem", "notice"] = "problem"
    fixable: bool = False
    sessions: tuple[str, ...] = ()


Integrity = Literal["quick", "full", "failed"]
"""The extent of SQLite's own check of the file, or `failed` if it found damage."""


@frozen(kw_only=True)
class StoreFacts:
    """A store.

    Attributes:
        path: of its file, or the address of its database without the password.
        version: of its schema.
        bytes: its size.
        sessions: open ones.
        archived: archived ones.
        deleted: deleted ones, of which only the id is left.
        messages: rows.
        events: rows.
        files: those of messages, each once for a tenant.
        file_bytes: their size.
        waits: tool calls that wait for an answer.
        erasures_due: deleted sessions of which something may be left elsewhere.
    """

    path: str
    version: int
    bytes: int
    sessions: int = 0
    archived: int = 0
    deleted: int = 0
    messages: int = 0
    events: int = 0
    files: int = 0
    file_bytes: int = 0
    waits: int = 0
    erasures_due: int = 0


@frozen(kw_only=True)
class FileFacts(StoreFacts):
    """A store in files.

    Attributes:
        log_bytes: size of the write-ahead log beside the file.
        page_size: in bytes.
        pages: how many the file has.
        free_pages: how many of them are empty.
        can_shrink: whether the empty ones can be given back while it is used.
        disk_free: bytes that the disk has left.
        read_only: whether the disk is mounted read-only.
        integrity: the extent of SQLite's own check, or `failed` if it found damage.
    """

    log_bytes: int
    page_size: int
    pages: int
    free_pages: int
    can_shrink: bool
    disk_free: int
    integrity: Integrity
    read_only: bool = False


@frozen(kw_only=True)
class DatabaseFacts(StoreFacts):
    """A store in a database.

    Attributes:
        server: the version of the server.
        synchronous_commit: its setting for this role and database.
        standbys: servers that follow it now.
        pgvector: the version of the extension in the database; None without it.
        dead_rows: rows that were changed or removed and wait for the server's vacuum, about.
        clock_ahead: seconds by which the server's clock is ahead of this machine's; 0 if the difference is too small.
    """

    server: str
    synchronous_commit: str
    standbys: int
    pgvector: str | None
    dead_rows: int
    clock_ahead: float


AnyFacts = TypeVar("AnyFacts", bound=StoreFacts)


@frozen
class HolderFacts:
    """A process that may write sessions, or did until it died.

    Attributes:
        name: its name; None if only its sessions are left of it.
        alive: whether it lives.
        expires_at: until when it counts as alive unless it renews.
        sessions: how many it holds.
    """

    name: str | None
    alive: bool
    expires_at: datetime | None
    sessions: int


@frozen
class ProjectionFacts:
    """The files that follow a store.

    Attributes:
        path: of their folder.
        change: the last change of the store that is surely in them; None without a checkpoint.
        behind: sessions that were changed after it. A gateway notes such a point every half minute or so.
    """

    path: str
    change: int | None
    behind: int


@frozen
class MemoryFacts:
    """The memory beside a store.

    Attributes:
        path: of its database.
        version: of its schema.
        bytes: its size, without the index.
        entries: texts remembered.
        sessions: sessions they come from.
        unsettled: sessions with remembered texts that may be uncommitted.
        embedders: names of the embedders that have made vectors.
        index: the state of the saved graph of vectors: "ok", "none", "damaged", or "stale" if it is of another memory
            or ahead of this one.
        index_bytes: its size.
        index_embedder: the embedder of the vectors in it.
        behind: entries stored since it was saved, which are compared one by one; None if it cannot be used.
    """

    path: str
    version: int
    bytes: int
    entries: int
    sessions: int
    unsettled: int
    embedders: tuple[str, ...]
    index: Literal["ok", "none", "damaged", "stale"]
    index_bytes: int
    index_embedder: str | None = None
    behind: int | None = None


@frozen
class Report(Generic[AnyFacts]):
    """The result of an examination.

    Attributes:
        store: the file or the database.
        holders: the processes that may write sessions.
        projection: the projection; None if there are no files of one.
        memory: the memory; None if there is none.
        findings: problems first, then notices.
        fixed: sentences about the repairs.
    """

    store: AnyFacts
    holders: tuple[HolderFacts, ...] = ()
    projection: ProjectionFacts | None = None
    memory: MemoryFacts | None = None
    findings: tuple[Finding, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether no problem is left."""
        return all(finding.level != "problem" for finding in self.findings)


@frozen
class StoreReport:
    """The state of a store, as a client of its runtime gets it.

    Attributes:
        healthy: whether there is no problem among the findings.
        seconds: the time that the examination took.
        file: the store, if it is a file; None if it is a database.
        database: the store, if it is a database; None if it is a file.
        holders: the processes that may write sessions, and those that have died and still have some.
        projection: the projection; None if there are no files of one.
        memory: the memory in files; None if there is none.
        findings: problems first, then notices.
    """

    healthy: bool
    seconds: float
    file: FileFacts | None
    database: DatabaseFacts | None
    holders: tuple[HolderFacts, ...] = ()
    projection: ProjectionFacts | None = None
    memory: MemoryFacts | None = None
    findings: tuple[Finding, ...] = ()


def report_for_client(found: "Report[FileFacts] | Report[DatabaseFacts]", seconds: float, *, ids: bool) -> StoreReport:
    """Return the report for a client; without `ids` no finding names sessions, which are those of all tenants."""
    store = found.store
    return StoreReport(
        healthy=found.healthy,
        seconds=seconds,
        file=store if isinstance(store, FileFacts) else None,
        database=store if isinstance(store, DatabaseFacts) else None,
        holders=found.holders,
        projection=found.projection,
        memory=found.memory,
        findings=found.findings if ids else tuple(attrs.evolve(each, sessions=()) for each in found.findings),
    )


def about_dead(holders: Iterable[HolderFacts], sessions: Sequence[str]) -> list[Finding]:
    """Return the finding about processes that died, if they still have sessions."""
    if not sessions:
        return []
    dead = sum(each.sessions > 0 and not each.alive for each in holders)
    who = "1 crashed process still has" if dead == 1 else f"{dead} crashed processes still have"
    what = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
    text = f"{who} {what}: a process that needs one takes it over"
    return [Finding("leases", text, "notice", fixable=True, sessions=tuple(sessions))]
