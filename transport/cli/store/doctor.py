"""`warren doctor` and `warren doctor prune`."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from warren.base.errors import InvalidParamsError, MemoryDisabledError
from warren.base.retention import Retention
from warren.conversation.options import TurnOptions
from warren.reports.reports import DatabaseFacts, FileFacts, Finding, Report
from warren.settings.config import PostgresConfig
from warren.transport.cli.command import command, examples
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.memory.remembered import forget
from warren.transport.cli.models import check_live
from warren.transport.cli.runtime import execute
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Mode, Options, config_option, gather, output_options, stored_options
from warren.transport.cli.settings.single import retention_options
from warren.transport.cli.store.chosen import MEMORY_FOLDER, existing_store_of, holds_memory, memory_of
from warren.transport.cli.terminal.progress import bar
from warren.transport.cli.terminal.results import show_result
from warren.transport.cli.terminal.streams import Streams

if TYPE_CHECKING:
    from warren.settings.config import StoreConfig
    from warren.storage.maintenance.plans import Plan, Pruned

IN_USE = "another process reads it; prune again later"
STYLES = {"problem": "red", "notice": "yellow"}


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=examples("warren doctor", "warren doctor --full --output json", "warren doctor --fix"),
)
@click.option("--full", is_flag=True, help="Look at every index and row too, which takes longer.")
@click.option("--fix", is_flag=True, help="Repair problems that can be repaired safely.")
@stored_options
@click.pass_context
def doctor(context: click.Context, /, *, full: bool, fix: bool, **given: Any) -> int:
    """Check a store, and list its problems.

    Other processes may use the store meanwhile, and nothing is changed without --fix. The exit code is 0 if there are
    no problems, else 1.

    --fix removes rows that belong to no session, repairs the index of labels, releases leases of dead processes, and
    moves a grown write-ahead log into the file. It leaves leases of living processes alone, and changes nothing in a
    damaged file.
    """
    if context.invoked_subcommand is None:
        return _examine(gather(given), full=full, fix=fix)
    named = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if named:
        raise click.UsageError(f"give the options after {context.invoked_subcommand}.")
    return 0


def _examine(options: Options, *, full: bool, fix: bool) -> int:
    """Examine a store; return the exit code: 1 if a problem is left.

    Raises SessionNotFoundError without a store, and StoreError if the store cannot be read or is damaged.
    """
    store = existing_store_of(options)
    if isinstance(store, PostgresConfig):
        _show(options, report := execute(partial(_examine_database, store, full=full, fix=fix), options))
        return 0 if report.healthy else 1
    of_files = _examine_files(options, store, full=full, fix=fix)
    _show(options, of_files)
    return 0 if of_files.healthy else 1


def _examine_files(options: Options, config: "StoreConfig", *, full: bool, fix: bool) -> Report[FileFacts]:
    from warren.storage.maintenance import doctor  # noqa: PLC0415 - it has an extra of its own

    report = doctor.examine(config, full=full)
    if fix:
        fixed = (*doctor.fix(config, report), *_fix_memory(config))
        report = attrs.evolve(doctor.examine(config, full=full), fixed=fixed)
    return _with_memory(options, config, report, full=full)


async def _examine_database(config: PostgresConfig, *, full: bool, fix: bool) -> Report[DatabaseFacts]:
    from warren.storage.maintenance.postgres import doctor  # noqa: PLC0415 - it has an extra of its own

    fixed = await doctor.fix(config) if fix else ()
    return attrs.evolve(await doctor.examine(config, full=full), fixed=fixed)


@command(
    "warren doctor prune --superseded 30d --events 90d --dry-run",
    "warren doctor prune --archived 365d --rewrite",
    of=doctor,
)
@retention_options
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option(
    "--rewrite", is_flag=True, help="Write the file anew in the end; nothing else may use the store meanwhile."
)
@stored_options
def prune(
    superseded: float | None,
    events: float | None,
    archived: float | None,
    audit: float | None,
    usage: float | None,
    *,
    dry_run: bool,
    rewrite: bool,
    options: Options,
) -> None:
    """Remove data that is older than its retention, and give its room back to the disk.

    It works in small steps beside a running gateway. Sessions go on as before, because the removed data is in no
    model's context. Data without a retention is kept for ever; the configuration file sets it in the table [retention]
    as superseded, events, archived, audit and usage. The remembered texts of a removed session are removed too.
    """
    ages = Retention(superseded, events, archived, audit, usage)
    if ages == Retention() and not rewrite:
        raise click.UsageError("nothing is to go: give --superseded, --events, --archived, --audit or --usage.")
    if dry_run and rewrite:
        raise click.UsageError("--dry-run and --rewrite exclude each other.")
    store = existing_store_of(options)
    if not isinstance(store, PostgresConfig):
        _prune_files(options, store, ages, dry_run=dry_run, rewrite=rewrite)
    elif rewrite:
        problem = "writes a file anew; the owner of tables does so by `VACUUM FULL`, table by table"
        raise InvalidParamsError.at("$.rewrite", problem)
    else:
        _prune_database(options, store, ages, dry_run=dry_run)


@command(
    "warren doctor models", "warren doctor models --model claude-haiku-5-5 --output json", name="models", of=doctor
)
@of_field(TurnOptions, "model", "-m", "--model", note="Without it each provider's usual one.")
@of_field(TurnOptions, "provider", "-p", "--provider", note="Without it all that have a key or an address.")
@config_option
@output_options
def check_models(options: Options) -> int:
    """Make one cheap call to each provider, and name the wrong setting.

    The problem is the key, the address, the quota, the name of the model, the certificate, or the answer. A call costs
    a few tokens. A server that is not a vendor's own gets four more calls, with a tool, a schema, an image and
    reasoning: what it does not take stands in the [providers.NAME] table that is printed for it. The exit code is 0 if
    every first call succeeds, else 1.

    Piped, each is a line of fields between tabs: provider, model, problem, message.
    """
    return check_live(options)


def _prune_files(options: Options, config: "StoreConfig", ages: Retention, *, dry_run: bool, rewrite: bool) -> None:
    from warren.storage.maintenance import retention  # noqa: PLC0415 - it has an extra of its own

    plan = retention.plan(config, ages, datetime.now(UTC))
    if dry_run:
        _show_plan(options, plan)
        return
    with bar(Streams(), "removing") as progress:
        done = retention.prune(config, plan, progress)
    if rewrite:
        retention.rewrite(config)
        after, log = retention.sizes_of(config)
        done = attrs.evolve(done, bytes_after=after, log_bytes=log)
    _forget(options, done.sessions)
    _show_pruned(options, done, "the file")


def _prune_database(options: Options, config: PostgresConfig, ages: Retention, *, dry_run: bool) -> None:
    from warren.storage.maintenance.postgres import retention  # noqa: PLC0415 - it has an extra of its own

    plan = execute(partial(retention.plan, config, ages, datetime.now(UTC)), options)
    if dry_run:
        _show_plan(options, plan)
        return
    with bar(Streams(), "removing") as progress:
        done = execute(partial(retention.prune, config, plan, progress), options)
    _forget(options, done.sessions)
    _show_pruned(options, done, "the tables")


def _with_memory(
    options: Options, config: "StoreConfig", report: Report[FileFacts], *, full: bool
) -> Report[FileFacts]:
    """Return the report with the state of the memory, if its extra is installed."""
    if not holds_memory(config.path):
        return report
    try:
        memory_of(options, config)
    except MemoryDisabledError as exc:
        unknown = Finding("memory", f"the memory was not looked at: {exc.message}", "notice")
        return attrs.evolve(report, findings=(*report.findings, unknown))
    from warren.storage.maintenance.memory import examine_memory  # noqa: PLC0415 - it has an extra of its own

    facts, findings = examine_memory(config.path / MEMORY_FOLDER, full=full)
    return attrs.evolve(report, memory=facts, findings=(*report.findings, *findings))


def _fix_memory(config: "StoreConfig") -> tuple[str, ...]:
    if not holds_memory(config.path):
        return ()
    try:
        from warren.storage.maintenance.memory import fix_memory  # noqa: PLC0415 - it has an extra of its own
    except ImportError:  # the report has the error
        return ()
    return fix_memory(config.path / MEMORY_FOLDER)


def _forget(options: Options, sessions: tuple[str, ...]) -> None:
    """Drop the remembered texts of deleted sessions; if that fails, the next start of a gateway does it."""

    async def work() -> None:
        for session_id in sessions:
            await forget(options, session_id)

    try:
        execute(work, options)
    except MemoryDisabledError as exc:
        Streams().note(f"their remembered texts stay: {exc.message}")


# -- the output


def _show(options: Options, report: Report[Any]) -> None:
    show_result(options, {"healthy": report.healthy, **attrs.asdict(report)}, _show_report, report, options.mode)


def _show_report(streams: Streams, report: Report[Any], mode: Mode) -> None:
    streams.write("".join(f"{name + ':':<13}{value}\n" for name, value in _facts(report)))
    for finding in report.findings:
        _show_finding(streams, finding, verbose=mode.verbose)
    streams.write("".join(f"fixed: {line}\n" for line in report.fixed))
    problems = sum(finding.level == "problem" for finding in report.findings)
    streams.write("healthy\n" if report.healthy else f"{problems} {'problem' if problems == 1 else 'problems'}\n")


def _facts(report: Report[Any]) -> Iterator[tuple[str, str]]:
    """Yield the heading of a report, name by name."""
    store = report.store
    yield "store", store.path
    yield "schema", f"version {store.version}"
    yield from _file_facts(store) if isinstance(store, FileFacts) else _database_facts(store)
    yield "sessions", f"{store.sessions} open, {store.archived} archived, {store.deleted} deleted"
    yield "rows", f"{store.messages} messages, {store.events} events"
    if store.files:
        yield "files", f"{store.files}, {size(store.file_bytes)}"
    if store.waits:
        yield "waits", f"{store.waits} tool calls wait for an answer"
    for holder in report.holders:
        state = "alive" if holder.alive else "dead"
        yield "holder", f"{holder.name or 'a process of which nothing is left'}: {state}, {holder.sessions} sessions"
    yield from _other_facts(report)


def _file_facts(store: FileFacts) -> Iterator[tuple[str, str]]:
    yield "file", f"{size(store.bytes)}, {size(store.free_pages * store.page_size)} of it free"
    yield "log", size(store.log_bytes)
    yield "disk", f"{size(store.disk_free)} free"
    yield "integrity", {"quick": "ok", "full": "ok, every page and index", "failed": "damaged"}[store.integrity]


def _database_facts(store: DatabaseFacts) -> Iterator[tuple[str, str]]:
    commit = f"synchronous_commit {store.synchronous_commit}"
    yield "server", f"PostgreSQL {store.server}, {commit}, {store.standbys} standbys"
    yield "pgvector", store.pgvector or "none"
    yield "tables", f"{size(store.bytes)}, {store.dead_rows} dead rows"


def _other_facts(report: Report[Any]) -> Iterator[tuple[str, str]]:
    projection, memory = report.projection, report.memory
    if projection is not None:
        yield "projection", f"{projection.behind} sessions behind its last checkpoint"
    if memory is not None:
        makers = [name for name in memory.embedders if not name.endswith("/0")]
        vectors = f"vectors of {', '.join(makers)}" if makers else "found by their words alone: no embedder was used"
        yield "memory", f"{memory.entries} texts, {size(memory.bytes)}; {vectors}"
        if memory.index == "none":
            yield "index", "none, as it needs none"
        else:
            behind = "" if memory.behind is None else f", {memory.behind} behind"
            yield "index", f"{memory.index}{behind}, {size(memory.index_bytes)}"


def _show_finding(streams: Streams, finding: Finding, *, verbose: bool) -> None:
    hint = " (--fix)" if finding.fixable else ""
    text = f"{finding.level}: {finding.message}{hint}"
    some = finding.sessions if verbose else finding.sessions[:3]
    more = len(finding.sessions) - len(some)
    named = "".join(f"\n  {session_id}" for session_id in some) + (f"\n  and {more} more; see -v" if more else "")
    if not streams.out_is_terminal:
        streams.write(f"{text}{named}\n")
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs rich

    streams.render(Text(text, STYLES[finding.level]).append(named, "dim"))


def _show_plan(options: Options, plan: "Plan") -> None:
    counts: dict[str, Any] = {"messages": plan.rows("messages"), "events": plan.rows("events")}
    data = counts | {"sessions": plan.sessions, "bytes": plan.size, "damaged": plan.damaged}
    data |= {name: count for name, count in (("entries", plan.entries), ("usage", plan.usage)) if count}
    text = "would go: {messages} messages, {events} events".format_map(counts)
    sessions = f"{len(plan.sessions)} archived sessions{_more(plan)}"
    show_result(options, data, _show_counts, f"{text}, {sessions}; {size(plan.size)} of text\n", plan.damaged)


def _show_pruned(options: Options, done: "Pruned", noun: str) -> None:
    streams = Streams()
    if done.log_bytes:
        streams.note(f"{size(done.log_bytes)} are still in the log, and removed rows among them: {IN_USE}", "yellow")
    text = (
        f"gone: {done.messages} messages, {done.events} events, {len(done.sessions)} archived sessions"
        f"{_more(done)}\n"
        f"{noun}: {size(done.bytes_before)} before, {size(done.bytes_after)} after\n"
    )
    show_result(options, done, _show_counts, text, done.damaged)


def _more(found: "Plan | Pruned") -> str:
    entries = f", {found.entries} entries of the audit" if found.entries else ""
    return entries + (f", {found.usage} rows of the ledger" if found.usage else "")


def _show_counts(streams: Streams, text: str, sessions: Sequence[str]) -> None:
    """Show what goes, and which sessions stay as their rows are damaged."""
    streams.write(text)
    if sessions:
        listed = ", ".join(sessions[:5]) + (f" and {len(sessions) - 5} more" if len(sessions) > 5 else "")  # noqa: PLR2004
        streams.note(f"left alone, their rows are damaged: {listed}; `warren doctor --fix` sets them aside")


def size(count: int) -> str:
    """Return a number of bytes with a unit, for a person."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:  # noqa: PLR2004 - it is what the units are made of
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
