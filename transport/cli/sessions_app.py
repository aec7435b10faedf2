"""The commands of `warren sessions`, their arguments and their help."""

from pathlib import Path
from typing import Any

import click

from warren.requests import MAX_PAGE, ContextRequest, ForkRequest, ListRequest
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import ID_HELP, examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import gather, label_option, reached_options, title_option
from warren.transport.cli.streams import read_prompt
from warren.transport.cli.values import label_of, text_of


@click.group(cls=CommandGroup)
def sessions() -> None:
    """Look at stored sessions, fork, label and retire them."""


@sessions.command(
    "list",
    epilog=examples(
        "warren sessions list --limit 10",
        "warren sessions list --all --label project=burrow",
        "warren sessions list --output json | jq -r '.sessions[].session_id'",
    ),
)
@of_field(ListRequest, "offset", variable=False, default=0, show_default=True)
@of_field(ListRequest, "limit", variable=False, default=50, show_default=True)
@of_field(ListRequest, "include_archived", "--all", "archived", variable=False, is_flag=True)
@label_option
@reached_options
def sessions_list(offset: int, limit: int, *, archived: bool, **given: Any) -> None:
    """List sessions, the one used last first.

    Piped, each is a line of fields between tabs: id, updated, messages, tokens, state, model, labels, title.
    """
    from warren.transport.cli import listing  # noqa: PLC0415 - help does without it

    listing.list_sessions(gather(given), offset, limit, archived=archived)


@sessions.command(
    "show",
    epilog=examples("warren sessions show last", "warren sessions show last --limit 500 --verbose", note=ID_HELP),
)
@click.argument("session", metavar="ID", type=text_of)
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), metavar="N", default=50, help="How many messages, the newest; 50."
)
@reached_options
def sessions_show(session: str, limit: int, **given: Any) -> None:
    """Show a session and its newest messages, with --verbose its summaries too."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.show_session(gather(given), session, limit)


@sessions.command(
    "delete", epilog=examples("warren sessions delete 4f9c", "warren sessions delete last --yes", note=ID_HELP)
)
@click.argument("session", metavar="ID", type=text_of)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal nothing is asked.")
@reached_options
def sessions_delete(session: str, *, yes: bool, **given: Any) -> None:
    """Delete a session with all of its data."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.delete_session(gather(given), session, ask=not yes)


@sessions.command("archive", epilog=examples("warren sessions archive last", note=ID_HELP))
@click.argument("session", metavar="ID", type=text_of)
@reached_options
def sessions_archive(session: str, **given: Any) -> None:
    """Retire a session: it stays readable, is hidden from the list and cannot be continued."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.archive_session(gather(given), session)


@sessions.command(
    "interrupt", epilog=examples("warren sessions interrupt last --server ws://127.0.0.1:8420", note=ID_HELP)
)
@click.argument("session", metavar="ID", type=text_of)
@reached_options
def sessions_interrupt(session: str, **given: Any) -> None:
    """End the turn that runs at a gateway; the answer so far is stored."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.interrupt_session(gather(given), session)


@sessions.command(
    "file",
    epilog=examples(
        "warren sessions file last $SHA256 --to photo.png", "warren sessions file last $SHA256 | wc -c", note=ID_HELP
    ),
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("sha256", type=text_of)
@click.option(
    "-o", "--to", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Where to write it; stdout."
)
@reached_options
def sessions_file(session: str, sha256: str, to: Path | None, **given: Any) -> None:
    """Write a file of a session's messages, by the SHA-256 that `warren sessions show` has."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.save_file(gather(given), session, sha256, to)


@sessions.command(
    "fork",
    epilog=examples(
        "warren sessions fork last", "warren sessions fork 4f9c --at 6 --label try=two --output json", note=ID_HELP
    ),
)
@click.argument("session", metavar="ID", type=text_of)
@of_field(ForkRequest, "at", variable=False)
@label_option
@title_option
@reached_options
def sessions_fork(session: str, at: int | None, **given: Any) -> None:
    """Make a session of the beginning of another one, and print its id. Nothing is run again."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.fork_session(gather(given), session, at)


@sessions.command(
    "inputs",
    epilog=examples("warren sessions inputs last", "warren sessions inputs last --withdraw INPUT", note=ID_HELP),
)
@click.argument("session", metavar="ID", type=text_of)
@click.option("--withdraw", type=text_of, metavar="INPUT", help="Take this one back, by its id.")
@reached_options
def sessions_inputs(session: str, withdraw: str | None, **given: Any) -> None:
    """List the inputs that wait for a session's next turn.

    Piped, each is a line of fields between tabs: id, kind, when, source, text.
    """
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.list_inputs(gather(given), session, withdraw)


@sessions.command("context", epilog=examples("warren sessions context last", note=ID_HELP))
@click.argument("session", metavar="ID", type=text_of)
@reached_options
def sessions_context(session: str, **given: Any) -> None:
    """Show how much of the context window a session takes, by part.

    Piped, each part is a line of fields between tabs: part, count, tokens. --output json has the messages, too.
    """
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.show_context(gather(given), session)


@sessions.command(
    "inject",
    epilog=examples(
        "warren sessions inject last 'The build is green again.'",
        "warren sessions inject last --source ci --key build-81 'The build is green again.'",
        note=ID_HELP,
    ),
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("text", type=text_of, required=False)
@of_field(ContextRequest, "source", variable=False)
@of_field(ContextRequest, "idempotency_key", "--key", "key", variable=False, metavar="KEY")
@reached_options
def sessions_inject(session: str, text: str | None, source: str | None, key: str | None, **given: Any) -> None:
    """Show TEXT to the model in a session's next turn, as context and not as a prompt.

    Without TEXT, or with -, it is read from stdin.
    """
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.inject_text(gather(given), session, lambda: read_prompt(text), source, key)


@sessions.command(
    "label",
    epilog=examples(
        "warren sessions label last project=burrow",
        "warren sessions label 4f9c --remove project --title 'The north tunnel'",
        note=ID_HELP,
    ),
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("labels", metavar="[K=V]...", type=label_of, nargs=-1)
@click.option("--remove", type=text_of, multiple=True, metavar="K", help="A label to take away; repeatable.")
@title_option
@reached_options
def sessions_label(session: str, labels: tuple[tuple[str, str], ...], remove: tuple[str, ...], **given: Any) -> None:
    """Set labels or the title of a session, or take labels away; all others stay."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    if not labels and not remove and given["title"] is None:
        raise click.UsageError("Name a label, K=V to set it or --remove K to take it away, or give a --title.")
    work.label_session(gather(given), session, {**dict(labels), **dict.fromkeys(remove)})
