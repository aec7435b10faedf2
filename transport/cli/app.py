"""The commands, their arguments and their help. What a command does is imported when it runs: help is quick."""

import os
from pathlib import Path
from typing import Any, Final

import click

from warren.transport.cli.failures import report
from warren.transport.cli.memory_app import memory
from warren.transport.cli.options import (
    Mode,
    budget_options,
    compaction_options,
    gather,
    label_option,
    memory_options,
    model_options,
    option,
    output_options,
    store_options,
    stream_option,
    system_option,
    text_of,
)
from warren.transport.cli.streams import Streams, prepare_streams, read_prompt

MAX_PAGE: Final = 1000
ID_HELP: Final = "ID is a session's id, the end of it that no other session has, or `last`."


def run_app(argv: list[str]) -> int:
    """Run one command to its end and return the exit code; what went wrong is on stderr by then."""
    prepare_streams()
    mode = Mode.guess(argv, os.environ)
    try:
        code = cli.main(argv, prog_name="warren", standalone_mode=False, obj=mode)
    except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - nothing below may show a traceback unasked
        return report(exc, mode, Streams())
    return code if isinstance(code, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="warren", message="warren %(version)s")
def cli() -> None:
    """Conversations with language models that outlive the process.

    Sessions are kept in the folder .rkat, unless --store names another one or --ephemeral keeps none. Every option
    that shows a variable can be set in the environment.
    """


@cli.command()
@click.argument("prompt", type=text_of, required=False)
@system_option
@label_option
@model_options
@budget_options("the session, over all its turns")
@compaction_options
@memory_options
@stream_option
@store_options
@output_options
def run(prompt: str | None, **given: Any) -> int:
    """Run PROMPT in a new session and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin. Ctrl-C ends the turn and keeps what came of it; a second
    one exits at once.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    return turns.run(gather(given), read_prompt(prompt))


@cli.command(epilog=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("prompt", type=text_of, required=False)
@model_options
@budget_options("this turn")
@compaction_options
@memory_options
@stream_option
@store_options
@output_options
def resume(session: str, prompt: str | None, **given: Any) -> int:
    """Continue a stored session with PROMPT and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    return turns.resume(gather(given), session, lambda: read_prompt(prompt))


@cli.command(epilog=ID_HELP)
@click.option("--resume", "session", type=text_of, metavar="ID", help="Continue this session.")
@system_option
@label_option
@model_options
@budget_options("the session, over all its turns")
@compaction_options
@memory_options
@stream_option
@store_options
@output_options
def chat(session: str | None, **given: Any) -> int:
    """Talk: each line is a turn of one session.

    /help lists the commands. Ctrl-C ends the turn, at the prompt it leaves, as Ctrl-D does.

    With a pipe for stdin each line of it is a turn; the exit code is that of the first one that failed.
    """
    from warren.transport.cli import chat as chatting  # noqa: PLC0415 - help does without it

    return chatting.chat(gather(given), session)


@cli.command(epilog=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.option("--instructions", type=text_of, metavar="TEXT", help="What the summary has to mind.")
@compaction_options
@memory_options
@store_options
@output_options
def compact(session: str, instructions: str | None, **given: Any) -> None:
    """Summarise what the model sees of a session.

    The next turns go on from the summary and the newest exchanges; the conversation stays readable as it was. This
    happens by itself where a session gets long.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    turns.compact(gather(given), session, instructions)


@cli.group()
def sessions() -> None:
    """Look at stored sessions and retire them."""


@sessions.command("list")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", default=0, help="How many to pass over.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), metavar="N", default=50, help="How many to show; 50.")
@click.option("--all", "archived", is_flag=True, help="Show archived ones too.")
@label_option
@store_options
@output_options
def sessions_list(offset: int, limit: int, *, archived: bool, **given: Any) -> None:
    """List sessions, the one used last first.

    Piped, each is a line of fields between tabs: id, updated, messages, tokens, state, model, labels.
    """
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.list_sessions(gather(given), offset, limit, archived=archived)


@sessions.command("show", epilog=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), metavar="N", default=50, help="How many messages, the newest; 50."
)
@store_options
@output_options
def sessions_show(session: str, limit: int, **given: Any) -> None:
    """Show a session and its newest messages, with --verbose its summaries too."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.show_session(gather(given), session, limit)


@sessions.command("delete", epilog=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal nothing is asked.")
@store_options
@output_options
def sessions_delete(session: str, *, yes: bool, **given: Any) -> None:
    """Remove a session and all it stored."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.delete_session(gather(given), session, ask=not yes)


@sessions.command("archive", epilog=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@store_options
@output_options
def sessions_archive(session: str, **given: Any) -> None:
    """Retire a session: it stays readable, is hidden from the list and cannot be continued."""
    from warren.transport.cli import sessions as work  # noqa: PLC0415 - help does without it

    work.archive_session(gather(given), session)


@cli.command()
@option(
    "--host",
    type=text_of,
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Another than loopback needs a token.",
)
@option("--port", type=click.IntRange(0, 65535), metavar="N", default=8420, show_default=True, help="0 picks one.")
@option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Clients have to know the token in it.")
@option("--origin", type=text_of, multiple=True, metavar="URL", help="A web page that may connect; repeatable.")
@system_option
@model_options
@compaction_options
@memory_options
@store_options
@output_options
def serve(
    host: str,
    port: int,
    token_file: Path | None,
    origin: tuple[str, ...],
    **given: Any,
) -> None:
    """Serve sessions to other programs.

    They speak JSON-RPC over a WebSocket at /ws.

    The first line on stdout is `listening on http://HOST:PORT`, once it accepts. SIGTERM and Ctrl-C end it in order:
    running turns are interrupted and stored; a second one exits at once.
    """
    from warren.transport.cli import serve as serving  # noqa: PLC0415 - help does without it

    serving.serve(gather(given), serving.Address(host, port, token_file, origin))


cli.add_command(memory)


@cli.command()
@output_options
def models(**given: Any) -> None:
    """List the models that can be named.

    It says which of them can be called now, and what is missing for the others.
    """
    from warren.transport.cli import models as naming  # noqa: PLC0415 - help does without it

    naming.list_models(gather(given))
