"""The commands that look after a store, their arguments and their help."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from warren.database_url import DatabaseUrl
from warren.options import TurnOptions
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import examples
from warren.transport.cli.option import F, of_field, option
from warren.transport.cli.options import config_option, gather, output_options, stored_options
from warren.transport.cli.values import duration_of, place_of

FILE: Final = click.Path(path_type=Path)


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
    from warren.transport.cli import doctor as work  # noqa: PLC0415 - help does without it

    if context.invoked_subcommand is None:
        return work.examine(gather(given), full=full, fix=fix)
    named = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if named:
        raise click.UsageError(f"give the options after {context.invoked_subcommand}.")
    return 0


def _age(name: str, about: str) -> Callable[[F], F]:
    return option(f"--{name}", type=duration_of, metavar="AGE", envvar=f"WARREN_RETENTION_{name.upper()}", help=about)


@doctor.command(
    "prune",
    epilog=examples(
        "warren doctor prune --superseded 30d --events 90d --dry-run", "warren doctor prune --archived 365d --rewrite"
    ),
)
@_age("superseded", "Remove messages that a summary has replaced: 30d, 12h.")
@_age("events", "Remove events from the event logs.")
@_age("archived", "Delete archived sessions, by their last turn.")
@_age("audit", "Remove entries of the audit.")
@_age("usage", "Remove hours of the ledger, but those of today.")
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
    **given: Any,
) -> None:
    """Remove data that is older than its retention, and give its room back to the disk.

    It works in small steps beside a running gateway. Sessions go on as before, because the removed data is in no
    model's context. Data without a retention is kept for ever; the configuration file sets it in the table [retention]
    as superseded, events, archived, audit and usage. The remembered texts of a removed session are removed too.
    """
    from warren.retention import Retention  # noqa: PLC0415 - help does without it
    from warren.transport.cli import doctor as work  # noqa: PLC0415 - the same

    ages = Retention(superseded, events, archived, audit, usage)
    if ages == Retention() and not rewrite:
        raise click.UsageError("nothing is to go: give --superseded, --events, --archived, --audit or --usage.")
    if dry_run and rewrite:
        raise click.UsageError("--dry-run and --rewrite exclude each other.")
    work.prune(gather(given), ages, dry_run=dry_run, rewrite=rewrite)


@doctor.command(
    "models",
    epilog=examples("warren doctor models", "warren doctor models --model claude-haiku-5-5 --output json"),
)
@of_field(TurnOptions, "model", "-m", "--model", note="Without it each provider's usual one.")
@of_field(TurnOptions, "provider", "-p", "--provider", note="Without it all that have a key or an address.")
@config_option
@output_options
def check_models(**given: Any) -> int:
    """Make one cheap call to each provider, and name the wrong setting.

    The problem is the key, the address, the quota, the name of the model, the certificate, or the answer. A call costs
    a few tokens. A server that is not a vendor's own gets four more calls, with a tool, a schema, an image and
    reasoning: what it does not take stands in the [providers.NAME] table that is printed for it. The exit code is 0 if
    every first call succeeds, else 1.

    Piped, each is a line of fields between tabs: provider, model, problem, message.
    """
    from warren.transport.cli import models as work  # noqa: PLC0415 - help does without it

    return work.check_live(gather(given))


@click.command(
    epilog=examples(
        "warren backup backup.sqlite3", "warren backup --store conversations --force /mnt/backup/conversations.sqlite3"
    )
)
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Replace FILE.")
@stored_options
def backup(file: Path, *, force: bool, **given: Any) -> None:
    """Copy the store to FILE, as it is at this moment.

    Other processes may use the store meanwhile. FILE holds all sessions; the memory goes into a file beside it:
    x.memory.sqlite3 beside x.sqlite3. Both are checked before they appear, and only your user can read them.
    """
    from warren.transport.cli import backup as work  # noqa: PLC0415 - help does without it

    work.back_up(gather(given), file, force=force)


@click.command(epilog=examples("warren restore backup.sqlite3", "warren restore backup.sqlite3 --store elsewhere"))
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Replace the store that is there, and its memory.")
@stored_options
def restore(file: Path, *, force: bool, **given: Any) -> None:
    """Make a store of a backup.

    No process may use the store. The memory is restored too if its file is beside FILE; its index is made anew on first
    use.
    """
    from warren.transport.cli import backup as work  # noqa: PLC0415 - help does without it

    work.restore(gather(given), file, force=force)


@click.command(
    epilog=examples(
        "warren copy .rkat postgresql://app@db.example.com/warren",
        "warren copy postgresql://app@db.example.com/warren conversations --output json",
        note="A password belongs into PGPASSWORD or ~/.pgpass.",
    )
)
@click.argument("source", metavar="SRC", type=place_of)
@click.argument("target", metavar="DST", type=place_of)
@output_options
def copy(source: Path | DatabaseUrl, target: Path | DatabaseUrl, **given: Any) -> None:
    """Copy all of a store into another one: a folder, or the address of a PostgreSQL database.

    No other process may use one of them. DST has no sessions yet; it cannot be opened before the copy is whole. If the
    command is interrupted, the same command goes on where it stopped. At its end it compares each row.
    """
    from warren.transport.cli import copy as work  # noqa: PLC0415 - help does without it

    work.copy(gather(given), source, target)


COMMANDS: Final = (doctor, backup, restore, copy)
