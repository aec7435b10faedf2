"""Slash commands: prompts that the agent itself obeys; no model sees them. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import attrs

from warren.memory import MemoryHit
from warren.records import CompactionEntry
from warren.service import Capabilities

Name = Literal["compact", "memory", "help"]
SHOWN: Final = 300
_COMMAND: Final = re.compile(r"/(compact|memory|help)(?:\s+(.*))?", re.DOTALL)


@attrs.frozen
class Command:
    """What a prompt tells the agent to do, and the words after the command."""

    name: Name
    words: str


def parse(prompt: str) -> Command | None:
    """Return the command that a prompt is; None for a prompt that is for the model, also where it begins with `/`."""
    found = _COMMAND.fullmatch(prompt.strip())
    return None if found is None else Command(cast(Name, found[1]), (found[2] or "").strip())


def advertised(capabilities: Capabilities) -> Sequence[Mapping[str, Any]]:
    """Return the commands as clients show them."""
    return [
        {"name": name, "description": description} | ({"input": {"hint": hint}} if hint else {})
        for name, hint, description in _commands(capabilities)
    ]


def help_text(capabilities: Capabilities) -> str:
    """Return the answer to /help."""
    lines = (f"- `/{name}{f' [{hint}]' if hint else ''}`: {text}" for name, hint, text in _commands(capabilities))
    return "\n".join(["The agent itself does these; everything else goes to the model.", *lines])


def compacted_text(entry: CompactionEntry) -> str:
    """Return the answer to /compact."""
    return (
        f"Compacted: the model now sees {entry.messages_after} messages instead of {entry.messages_before}, the first "
        f"of them a summary of {entry.summary_tokens} tokens. The conversation itself stays as it is."
    )


def memory_text(hits: Sequence[MemoryHit]) -> str:
    """Return the answer to /memory."""
    if not hits:
        return "Nothing that fits was said before what the model still sees."
    return "\n".join(f"- ({hit.score:.2f}, turn {hit.turn}) {_line(hit.content)}" for hit in hits)


def _commands(capabilities: Capabilities) -> Iterator[tuple[Name, str, str]]:
    """Yield name, hint and description; one that cannot be had says so, for whoever wonders where it is."""
    off = "" if capabilities.session_compaction else " (off: the agent runs with --no-compaction)"
    yield "compact", "what the summary has to mind", f"Summarise what the model sees of this session, now{off}"
    off = "" if capabilities.memory_store else " (off: the agent runs without --memory)"
    yield "memory", "words", f"Search what this session's summaries replaced{off}"
    yield "help", "", "List these commands"


def _line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= SHOWN else joined[:SHOWN] + "…"
