"""`warren sessions`: the stored sessions, listed, shown, changed and retired."""

from typing import Final

import click

from warren.transport.cli.groups import CommandGroup

COMMANDS: Final = {
    "archive": (
        "sessions.changing:archive",
        "Retire a session: it stays readable, is hidden from the list and cannot be continued.",
    ),
    "context": ("sessions.reading:context", "Show how much of the context window a session takes, by part."),
    "delete": ("sessions.changing:delete", "Delete a session with all of its data."),
    "file": (
        "sessions.reading:file",
        "Write a file of a session's messages, by the SHA-256 that `warren sessions show` has.",
    ),
    "fork": (
        "sessions.changing:fork",
        "Make a session of the beginning of another one, and print its id. Nothing is run again.",
    ),
    "inject": (
        "sessions.changing:inject",
        "Show TEXT to the model in a session's next turn, as context and not as a prompt.",
    ),
    "inputs": ("sessions.reading:inputs", "List the inputs that wait for a session's next turn."),
    "interrupt": (
        "sessions.changing:interrupt",
        "End the turn that runs at a gateway; the answer so far is stored.",
    ),
    "label": (
        "sessions.changing:label",
        "Set labels or the title of a session, or take labels and allowed tools away; all others stay.",
    ),
    "list": ("sessions.listing:list_sessions", "List sessions, the one used last first."),
    "show": (
        "sessions.reading:show_session",
        "Show a session and its newest messages, with --verbose its summaries too.",
    ),
}


@click.group(cls=CommandGroup, table=COMMANDS)
def sessions() -> None:
    """Look at stored sessions, fork, label and retire them."""
