"""Agents as files and settings have them: plain values under the names of the options of sessions."""

from typing import Any, Final

import attrs

from warren.agents.agent import OF_AGENT, Agent
from warren.base.fields import FieldValueError, is_text
from warren.base.values import frozen
from warren.conversation.options import SessionOptions, part

_SPELLED: Final = {field: option for option, field in OF_AGENT.items() if option != "fallback"}


@frozen(kw_only=True)
class WrittenAgent(SessionOptions):
    """An agent without its name: the options of its sessions, and what is its own.

    Without `tools` it has none. They are names of tools of the runtime: nothing that is written has functions.

    Attributes:
        description: what it is for, in a line.
        instructions: the system prompt of its sessions; empty takes the runtime's.
    """

    description: str = attrs.field(default="", validator=is_text)
    instructions: str = attrs.field(default="", validator=is_text)


def agent_of(name: str, written: WrittenAgent) -> Agent[Any]:
    """Return the agent. Raises FieldValueError that names the field as it is written."""
    if written.fallback and written.model is None:
        raise FieldValueError("fallback", "needs `model`, whose place they take")
    own = part(SessionOptions, written, **dict.fromkeys(OF_AGENT))
    try:
        return Agent(
            name,
            written.instructions,
            description=written.description,
            model=() if written.model is None else (written.model, *(written.fallback or ())),
            tools=written.tools or (),
            budget=written.budget,
            gates=written.approvals,
            compaction=written.compaction,
            options=own,
        )
    except FieldValueError as exc:
        field = exc.field.removeprefix("options.")
        head = field.partition("[")[0]
        raise FieldValueError(_SPELLED.get(head, head) + field[len(head) :], exc.problem) from None
