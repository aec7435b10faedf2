"""The table of all commands, and the run of one."""

import os
from typing import Final

import click

from warren.reports.tracing import HEADER, context_of, here
from warren.transport.cli.command import examples
from warren.transport.cli.failures import report
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.settings.names import COMPLETION, WORKER
from warren.transport.cli.settings.options import Mode
from warren.transport.cli.settings.service_links import note_on, service_links
from warren.transport.cli.terminal import json_lines
from warren.transport.cli.terminal.stderr import in_background
from warren.transport.cli.terminal.streams import Streams, prepare_streams


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


COMMANDS: Final = {
    "acp": ("pipe.acp:acp", "Serve an editor or another client that speaks the Agent Client Protocol."),
    "agents": ("agents:agents", "List the agents by name, or show the one named NAME with its versions."),
    "approvals": ("approvals:approvals", "List the tool calls that wait for approval, of all sessions."),
    "approve": ("approvals:approve", "Allow a tool call that waits for approval: the session's turn goes on with it."),
    "audit": ("audit:audit", "Show entries of the audit, oldest first."),
    "backup": ("store.backup:backup", "Copy the store to FILE, as it is at this moment."),
    "chat": ("turns.chat:chat", "Chat: each line is a turn of one session."),
    "compact": ("turns.commands:compact", "Summarise the context of a session."),
    "complete": ("turns.completing:complete", "Give the RESULT of a tool call that waits for one from outside."),
    "completion": ("completion:completion", "Print the script that makes SHELL complete this command."),
    "config": ("settings.show:config", "Look at the settings."),
    "copy": (
        "store.copying:copy",
        "Copy all of a store into another one: a folder, or the address of a PostgreSQL database.",
    ),
    "delegate": (
        "turns.commands:delegate",
        "Have a child session work on PROMPT for a session, and print its id.",
    ),
    "deny": ("approvals:deny", "Deny a tool call that waits for approval: the session's turn goes on without it."),
    "doctor": ("store.doctor:doctor", "Check a store, and list its problems."),
    "health": ("health:health", "Ask a server whether it is ready; the exit code is 0 if it is, else 1."),
    "load": (
        "load.commands:load",
        "Run many sessions at once, measure them, and check every one of them to its last row.",
    ),
    "mcp": ("pipe.mcp:mcp", "Offer sessions as tools to a program that speaks the Model Context Protocol."),
    "memory": ("memory.commands:memory", "Search the memory, and look after it."),
    "models": ("models:models", "List the models that can be named."),
    "nodes": ("nodes:nodes", "List the processes that share a store, and end one of them in order."),
    "project": ("store.projecting:project", "Look after the plain files that mirror the store."),
    "record": (
        "turns.commands:record",
        "Run a COMMAND of warren, and record the answers of its models in FILE.",
    ),
    "restore": ("store.backup:restore", "Make a store of a backup."),
    "resume": ("turns.commands:resume", "Continue a stored session with PROMPT and print the answer."),
    "rpc": ("pipe.rpc:rpc", "Serve sessions to the program that starts this one."),
    "run": ("turns.commands:run", "Run PROMPT in a new session and print the answer."),
    "schedules": ("schedules:schedules", "Make prompts that are due at times of their own, and look after them."),
    "serve": ("serve.serving:serve", "Serve sessions to other programs."),
    "sessions": ("sessions:sessions", "Look at stored sessions, fork, label and retire them."),
    "store": ("store.versions:store", "Create a store, and bring it up to the version of this program."),
    "token": ("tokens:token", "Make and revoke the tokens by which servers know their clients."),
    "triggers": ("triggers:triggers", "Make prompts that come when a signed call comes, and look after them."),
    "usage": ("usage:usage", "Show the tokens and the cost of models."),
    "wait": ("turns.commands:wait", "Wait for the end of a session's turn, and print its answer."),
    "webhooks": ("webhooks:webhooks", "Post what happens in sessions to addresses, and look after what was posted."),
}
"""Each command with its module, and its line in the list of all; a command is imported when it runs."""


@click.group(
    cls=CommandGroup,
    table=COMMANDS,
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
