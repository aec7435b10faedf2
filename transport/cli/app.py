"""The commands, their arguments and their help. A command's work is imported when it runs, so help is quick."""

import os
from pathlib import Path
from typing import Any, Final

import click

from warren.options import TurnOptions
from warren.requests import CompactRequest
from warren.tracing import HEADER, context_of, here
from warren.transport.cli.failures import report
from warren.transport.cli.help import ID_HELP, examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import (
    Mode,
    attach_option,
    compaction_options,
    config_option,
    gather,
    memory_options,
    output_options,
    reached_options,
    session_options,
    turn_options,
)
from warren.transport.cli.streams import Streams, prepare_streams, read_prompt
from warren.transport.cli.values import text_of


def run_app(argv: list[str]) -> int:
    """Run one command to its end, with errors on stderr, and return the exit code."""
    prepare_streams()
    mode = Mode.guess(argv, os.environ)
    here.set(context_of(os.environ.get(HEADER.upper())))
    try:
        code = cli.main(argv, prog_name="warren", standalone_mode=False, obj=mode)
    except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - nothing below may show a traceback unasked
        return report(exc, mode, Streams())
    return code if isinstance(code, int) else 0


class _Group(click.Group):
    """Commands of which some are imported when they are looked up: no command waits for the options of all others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if cmd_name in ELSEWHERE and cmd_name not in self.commands:
            self.add_command(_imported(cmd_name))
        return super().get_command(ctx, cmd_name)


ELSEWHERE: Final = (
    *("sessions", "memory", "serve", "rpc", "mcp", "acp"),
    *("config", "completion", "doctor", "backup", "restore", "copy", "project", "load", "store", "nodes", "token"),
    *("audit", "usage"),
)
"""The commands that are in modules of their own."""


def _imported(name: str) -> click.Command:  # noqa: C901, PLR0911, PLR0912 - one case for each module
    """Import one of the commands that are elsewhere."""
    match name:
        case "sessions":
            from warren.transport.cli.sessions_app import sessions  # noqa: PLC0415

            return sessions
        case "memory":
            from warren.transport.cli.memory.app import memory  # noqa: PLC0415

            return memory
        case "config":
            from warren.transport.cli.config.app import config  # noqa: PLC0415

            return config
        case "completion":
            from warren.transport.cli.completion import completion  # noqa: PLC0415

            return completion
        case "project":
            from warren.transport.cli.project_app import project  # noqa: PLC0415

            return project
        case "store":
            from warren.transport.cli.store_app import store  # noqa: PLC0415

            return store
        case "nodes":
            from warren.transport.cli.nodes_app import nodes  # noqa: PLC0415

            return nodes
        case "audit":
            from warren.transport.cli.audit_app import audit  # noqa: PLC0415

            return audit
        case "token":
            from warren.transport.cli.token_app import token  # noqa: PLC0415

            return token
        case "usage":
            from warren.transport.cli.usage_app import usage  # noqa: PLC0415

            return usage
        case "load":
            from warren.transport.cli.load_app import load  # noqa: PLC0415

            return load
        case "doctor" | "backup" | "restore" | "copy":
            from warren.transport.cli import doctor_app  # noqa: PLC0415

            return {each.name: each for each in doctor_app.COMMANDS}[name]
        case "serve":
            from warren.transport.cli.serve_app import serve  # noqa: PLC0415

            return serve
        case _:
            from warren.transport.cli import pipe_app  # noqa: PLC0415

            return {"rpc": pipe_app.rpc, "mcp": pipe_app.mcp, "acp": pipe_app.acp}[name]


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        'warren run "What is a warren?"',
        'warren resume last "And who lives there?"',
        "warren sessions list",
        "warren serve --port 8420",
        note="`warren COMMAND --help` has the options of each command, and examples.",
    ),
)
@click.version_option(package_name="warren", message="warren %(version)s")
def cli() -> None:
    """Conversations with language models that outlive the process.

    Sessions are kept in the folder .rkat, unless --store names another one or --ephemeral keeps none. Every option
    that shows a variable can be set in the environment.
    """


@cli.command(
    epilog=examples(
        'warren run "What is a warren?"',
        "git diff | warren run --model claude-sonnet-5 --system 'Review this change.'",
        "warren run --ephemeral --output json --max-duration 2m 'Name three colours.'",
        "warren run --label project=burrow --memory 'Let us begin.'",
    )
)
@click.argument("prompt", type=text_of, required=False)
@click.option(
    "--key",
    type=text_of,
    metavar="KEY",
    help="Run again with one key, it shows the first answer: one session, not two.",
)
@attach_option
@session_options
def run(prompt: str | None, **given: Any) -> int:
    """Run PROMPT in a new session and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it. Ctrl-C ends
    the turn and keeps the answer so far; a second one exits at once.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    return turns.run(gather(given), read_prompt(prompt, with_pipe=True))


@cli.command(
    epilog=examples(
        "warren resume last 'And who lives there?'",
        "warren resume 4f9c --max-steps 5 --stream 'Go on.'",
        "warren resume last - < question.txt",
        note=ID_HELP,
    )
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("prompt", type=text_of, required=False)
@attach_option
@turn_options("this turn")
def resume(session: str, prompt: str | None, **given: Any) -> int:
    """Continue a stored session with PROMPT and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    return turns.resume(gather(given), session, lambda: read_prompt(prompt, with_pipe=True))


@cli.command(
    epilog=examples(
        "warren chat --memory",
        "warren chat --resume last",
        "printf 'Hello\\nAnd again\\n' | warren chat --model echo",
        note=ID_HELP,
    )
)
@click.option("--resume", "session", type=text_of, metavar="ID", help="Continue this session.")
@session_options
def chat(session: str | None, **given: Any) -> int:
    """Chat: each line is a turn of one session.

    /help lists the commands. Ctrl-C ends the turn; at the prompt it leaves, with exit code 130, Ctrl-D with 0.

    With a pipe for stdin each line of it is a turn. The exit code is that of the first turn or command that failed.
    """
    from warren.transport.cli import chat as chatting  # noqa: PLC0415 - help does without it

    return chatting.chat(gather(given), session)


@cli.command(
    epilog=examples(
        "warren compact last", "warren compact last --instructions 'Keep the names of files.'", note=ID_HELP
    )
)
@click.argument("session", metavar="ID", type=text_of)
@of_field(CompactRequest, "instructions", metavar="TEXT", variable=False)
@compaction_options
@memory_options
@reached_options
def compact(session: str, instructions: str | None, **given: Any) -> None:
    """Summarise the context of a session.

    The next turns go on from the summary and the newest exchanges; the conversation stays readable as it was. Long
    sessions are summarised by themselves.
    """
    from warren.transport.cli import turns  # noqa: PLC0415 - help does without it

    turns.compact(gather(given), session, instructions)


@cli.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples("warren record talk.json -- run 'What is a burrow?'", "warren record talk.json -- serve"),
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record(context: click.Context, /, *, file: Path, command: tuple[str, ...]) -> Any:
    """Run a COMMAND of warren, and record the answers of its models in FILE.

    FILE is a script: `--model scripted:FILE` plays the answers to a session of the same course, with their pieces and
    calls of tools, and calls nobody. Further sessions get files of their own beside it. No keys and no requests are
    written. It is the same as the option --record of the command.
    """
    os.environ["WARREN_RECORD"] = str(file.absolute())
    return context.find_root().command.main(list(command), standalone_mode=False)


@cli.command(epilog=examples("warren models", "OPENAI_BASE_URL=http://127.0.0.1:8000/v1 warren models --output json"))
@click.option("--live", is_flag=True, help="Ask each provider that has a key or an address of its own for its models.")
@of_field(TurnOptions, "provider", "-p", "--provider", note="With --live: the only one to ask.")
@config_option
@output_options
def models(*, live: bool, **given: Any) -> int:
    """List the models that can be named.

    For each it says whether it can be called now, or the setting that is missing, and what is known of it: the tokens
    of its window and of an answer, and its prices in US dollars per million tokens.
    """
    from warren.transport.cli import models as naming  # noqa: PLC0415 - help does without it

    if live:
        return naming.list_live(gather(given))
    naming.list_models(gather(given))
    return 0
