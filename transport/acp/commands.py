"""Slash commands: prompts that the agent runs itself and that no model sees. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

from warren.base.values import frozen
from warren.calls.facade import Capabilities
from warren.conversation.memory import MemoryHit
from warren.conversation.records import CompactionEntry

Name = Literal["compact", "memory", "help"]
SHOWN: Final = 300
_COMMAND: Final = re.compile(r"/(compact|memory|help)(?:\s+(.*))?", re.DOTALL)


@frozen
class SlashCommand:
    """A slash command, and the text after its name."""

    name: Name
    words: str


def parse(prompt: str) -> SlashCommand | None:
    """Return the command in a prompt; None if the prompt is for the model, as one with an unknown `/name` is."""
    found = _COMMAND.fullmatch(prompt.strip())
    return None if found is None else SlashCommand(cast(Name, found[1]), (found[2] or "").strip())


def advertised(capabilities: Capabilities) -> Sequence[Mapping[str, Any]]:
    """Return the available commands in the form of the protocol."""
    return [
        {"name": name, "description": description} | ({"input": {"hint": hint}} if hint else {})
        for name, hint, description in _commands(capabilities)
    ]


def help_text(capabilities: Capabilities) -> str:
    """Return the answer to /help."""
    lines = (f"- `/{name}{f' [{hint}]' if hint else ''}`: {text}" for name, hint, text in _commands(capabilities))
    return "\n".join(["The agent runs these commands itself; every other prompt goes to the model.", *lines])


def compacted_text(entry: CompactionEntry) -> str:
    """Return the answer to /compact."""
    return (
        f"Compacted: the model now sees {entry.messages_after} messages instead of {entry.messages_before}. The first "
        f"one is a summary of {entry.summary_tokens} tokens. The history of the conversation is unchanged."
    )


def memory_text(hits: Sequence[MemoryHit]) -> str:
    """Return the answer to /memory."""
    if not hits:
        return "No compacted message matches."
    return "\n".join(f"- ({hit.score:.2f}, turn {hit.turn}) {_line(hit.content)}" for hit in hits)


def _commands(capabilities: Capabilities) -> Iterator[tuple[Name, str, str]]:
    """Yield the name, hint and description of each command. The description of one that is off says why it is."""
    off = "" if capabilities.session_compaction else " (off: the agent runs with --no-compaction)"
    yield "compact", "instructions for the summary", f"Summarise the context of this session now{off}"
    off = "" if capabilities.memory_store else " (off: the agent runs without --memory)"
    yield "memory", "query", f"Search the messages that summaries of this session replaced{off}"
    yield "help", "", "List these commands"


def _line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= SHOWN else joined[:SHOWN] + "…"
