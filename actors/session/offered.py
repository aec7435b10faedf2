"""The tools of a session: those that there are for it, the list of names among them, those its model is offered."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from warren.actors.session.comms import COMMS_TOOLS, SENDING, Comms
from warren.actors.shared import Shared
from warren.actors.turn.chain import Chain
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.conversation import aliases
from warren.conversation.options import NO_OPTIONS, TurnOptions
from warren.conversation.records import SessionRecord
from warren.models.tools import Tool

SHOWN: Final = 20
"""Names of tools that an error shows."""


def there_for(
    record: SessionRecord,
    shared: Shared,
    comms: Comms,
    given_tools: Mapping[str, Tool],
    *,
    chain: Chain | None = None,
) -> Mapping[str, Tool]:
    """Return all tools that Warren runs for a session, by the names that its list of tools may have.

    Args:
        record: the session.
        shared: the resources of the runtime, with its tools.
        comms: has the tools for messages to peers.
        given_tools: tools that the host gave the session, or the caller the turn, by name. They replace others.
        chain: the chain of messages of peers that the turn belongs to.
    """
    search = shared.memory.tools_of(record.session_id, record.tenant)
    own = {name: each for name, each in shared.tools.items() if each.tenant in (None, record.tenant)}
    sends = {**comms.tools_of(record, chain), **comms.reminders.tools_of(record, shared.config.tools)}
    there = {**search, **sends, **own, **comms.of_agent(record, chain), **given_tools}
    if shared.servers is not None:
        there |= shared.servers.tools(record.session_id, there)
    return there


def tools_of(
    record: SessionRecord,
    asked: TurnOptions,
    shared: Shared,
    comms: Comms,
    given_tools: Mapping[str, Tool],
    *,
    chain: Chain | None = None,
) -> Mapping[str, Tool]:
    """Return the tools that the model is offered: of the kinds that are on, those that the session's list names.

    `asked` are the options of the turn; the other arguments are those of `there_for`.
    """
    return _offered(there_for(record, shared, comms, given_tools, chain=chain), record, asked, shared)


def _offered(
    there: Mapping[str, Tool], record: SessionRecord, asked: TurnOptions, shared: Shared
) -> Mapping[str, Tool]:
    if not there:
        return there
    switches = asked.switched(record.options, shared.config.switches)
    allowed = record.options.tools
    names = there if allowed is None else [name for name in allowed if name in there]
    return {name: there[name] for name in names if switches.on(there[name].category)}


def instructions_of(
    given: str | None, record: SessionRecord, shared: Shared, comms: Comms, session_tools: Mapping[str, Tool]
) -> str | None:
    """Return the instructions of a new session: the given ones, and the notes of the tools that it is offered."""
    if not shared.notes:
        return given
    offered = tools_of(record, NO_OPTIONS, shared, comms, session_tools)
    notes = [note for name, note in shared.notes.items() if offered.get(name) is shared.tools[name]]
    return "\n\n".join([*([given] if given else []), *notes]) or None


def names_of(tools: Sequence[str | Tool]) -> tuple[str, ...]:
    """Return the names of tools, each under its own name."""
    return tuple(tool.spec.name if isinstance(tool, Tool) else aliases.TOOLS.get(tool, tool) for tool in tools)


def warnings_of(
    record: SessionRecord, shared: Shared, comms: Comms, given_tools: Mapping[str, Tool]
) -> tuple[str, ...]:
    """Return what a new session asks for and does not get: tools of its list, and a way to answer its peers.

    Raises InvalidParamsError that names the place in the list if there is no such tool for the session.
    """
    listed, peer = record.options.tools, record.options.peer
    if listed is None and peer is None:
        return ()
    there = there_for(record, shared, comms, given_tools)
    offered = _offered(there, record, NO_OPTIONS, shared)
    warnings, missing = list[str](), list[str]()
    for index, name in enumerate(listed or ()):
        if name in there:
            if name not in offered:
                kind = there[name].category
                warnings.append(f"tools[{index}]: {name} is not offered while its kind is off, see overrides.{kind}")
        elif name not in (record.options.hosted_tools or ()):
            if record.agent is None:
                raise _no_tool(index, name, there, shared)
            missing.append(name)
    if missing:  # the caller cannot help it: the list is the agent's
        warnings.append(f"agent: {record.agent} has tools that are not here: {', '.join(missing)}")
    if peer is not None and peer.trusts and SENDING.isdisjoint(offered):
        left_out = listed is not None and SENDING.isdisjoint(listed)
        why = "the list of tools leaves out" if left_out else "the kind comms is off, and with it"
        warnings.append(f"peer: the model cannot answer the session's peers: {why} {' and '.join(sorted(SENDING))}")
    return tuple(warnings)


def _no_tool(index: int, name: str, there: Collection[str], shared: Shared) -> InvalidParamsError:
    """Return the error for a name in a list of tools that no tool of the session has."""
    from difflib import get_close_matches  # noqa: PLC0415 - it is slow to import, and few misspell a name

    from warren.actors.resources.memory import SEARCH  # noqa: PLC0415 - a runtime without a memory does not need it

    if name in COMMS_TOOLS:
        cure = "that is for a session with a name among peers, see `peer`"
    elif name == SEARCH:
        cure = "this runtime has no memory"
    elif near := get_close_matches(name, there, n=1):
        cure = f"did you mean {near[0]!r}?"
    else:
        known = sorted(there)
        cure = f"there are: {', '.join(known[:SHOWN]) or 'none'}"
        cure += f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    away = [each.name for each in (shared.servers.health() if shared.servers else ()) if each.status != "ok"]
    if away:
        cure += f"; those of MCP servers that are not connected are unknown: {', '.join(away)}"
    return FieldValueError(f"tools[{index}]", f"there is no tool {name!r}; {cure}").refusal()
