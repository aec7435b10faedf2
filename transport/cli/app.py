"""The commands, their arguments and their help. A command's work is imported when it runs, so help is quick."""

import os
from typing import Final

import click

from warren.tracing import HEADER, context_of, here
from warren.transport.cli import json_lines
from warren.transport.cli.failures import report
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import examples
from warren.transport.cli.options import Mode
from warren.transport.cli.service_links import note_on, service_links
from warren.transport.cli.setting_names import COMPLETION, WORKER
from warren.transport.cli.stderr import in_background
from warren.transport.cli.streams import Streams, prepare_streams


def run_app(argv: list[str]) -> int:
    """Run one command to its end, with errors on stderr, and return the exit code."""
    prepare_streams()
    with in_background():
        return _run(argv)


def _run(argv: list[str]) -> int:
    json_lines.begin(argv, os.environ)
    mode = Mode.guess(argv, os.environ)
    if (links := service_links(os.environ)) and os.environ.keys().isdisjoint((WORKER, COMPLETION)):
        Streams().note(note_on(links))
    here.set(context_of(os.environ.get(HEADER.upper())))
    try:
        code = cli.main(argv, prog_name="warren", standalone_mode=False, obj=mode)
    except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - nothing below may show a traceback unasked
        return report(exc, mode, Streams())
    return code if isinstance(code, int) else 0


class _Group(CommandGroup):
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
    *("run", "resume", "chat", "compact", "record", "models"),
    *("sessions", "memory", "serve", "rpc", "mcp", "acp"),
    *("config", "completion", "doctor", "backup", "restore", "copy", "project", "load", "store", "nodes", "token"),
    *("audit", "usage", "health"),
)
"""The commands that are in modules of their own."""


def _imported(name: str) -> click.Command:  # noqa: C901, PLR0911, PLR0912 - one case for each module
    """Import one of the commands that are elsewhere."""
    match name:
        case "run" | "resume" | "chat" | "compact" | "record" | "models":
            from warren.transport.cli import turns_app  # noqa: PLC0415

            return {each.name: each for each in turns_app.COMMANDS}[name]
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
        case "health":
            from warren.transport.cli.health_app import health  # noqa: PLC0415

            return health
        case "load":
            from warren.transport.cli.load_app import load  # noqa: PLC0415

            return load
        case "doctor" | "backup" | "restore" | "copy":
            from warren.transport.cli import doctor_app  # noqa: PLC0415

            return {each.name: each for each in doctor_app.COMMANDS}[name]
        case "rpc":
            from warren.transport.cli.rpc_app import rpc  # noqa: PLC0415

            return rpc
        case "serve":
            from warren.transport.cli.serve_app import serve  # noqa: PLC0415

            return serve
        case _:
            from warren.transport.cli import pipe_app  # noqa: PLC0415

            return {"mcp": pipe_app.mcp, "acp": pipe_app.acp}[name]


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
