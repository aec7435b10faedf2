"""The tools that MCP clients call: which method each one stands for, and what a model has to know to use it."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from warren.transport.rpc.methods import METHODS, Method


@attrs.frozen
class McpTool:
    """One tool: a method of the table under another name.

    Attributes:
        name: what clients call.
        method: what it does; its parameters are the tool's arguments.
        title: for people.
        doc: for the model that is to decide whether to call it.
        arguments: what its arguments mean, for the same reader, if their fields do not say it well.
        read_only: whether it changes nothing.
        destructive: whether it takes something away.
        idempotent: whether doing it twice is as good as once.
        open_world: whether it calls a model, and with it what its tools reach.
    """

    name: str
    method: Method[Any, Any]
    title: str
    doc: str
    arguments: Mapping[str, str]
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


_SESSION: Final = {"session_id": "The session's id."}
_KEY: Final = "A text of your own; what is sent again under the same one is not taken twice."
_TABLE: Final = (
    McpTool(
        "warren_run",
        METHODS["session/create"],
        "Start a session",
        "Start a new session and run its first turn. Returns the answer and the session's id, by which warren_resume "
        "goes on with it. The session outlives this call and, where there is a store, the server.",
        {
            "prompt": "What to say to the session's model; null creates the session without a turn.",
            "idempotency_key": "A text of your own; what is sent again under the same one creates no second session.",
        },
        open_world=True,
    ),
    McpTool(
        "warren_resume",
        METHODS["turn/start"],
        "Go on with a session",
        "Run the next turn of a session. A session runs one turn at a time: while another one runs, this fails with "
        "SESSION_BUSY, unless the mode says otherwise.",
        {
            **_SESSION,
            "prompt": "What to say to the session's model.",
            "mode": "While another turn runs: fail, wait for its end, or enter it at its next step.",
            "idempotency_key": f"For a mode that waits. {_KEY}",
        },
        open_world=True,
    ),
    McpTool(
        "warren_interrupt",
        METHODS["turn/interrupt"],
        "Interrupt a turn",
        "End the turn that a session runs, whoever started it. What came of it so far is kept.",
        _SESSION,
        destructive=True,
    ),
    McpTool(
        "warren_approve",
        METHODS["tool/approve"],
        "Approve a tool call",
        "Let a tool call of a session's model run, or refuse it: one that waits for this, as the progress of its turn "
        "has told. First come counts.",
        {
            **_SESSION,
            "call_id": "The call's id.",
            "decision": "Whether it runs.",
            "reason": "Why; the session's model is told.",
        },
    ),
    McpTool(
        "warren_inject_context",
        METHODS["session/inject_context"],
        "Tell a session something",
        "Have a session's model know something that nobody said to it: it reads it at the next step of the turn that "
        "runs, or with the next turn. No turn begins.",
        {**_SESSION, "text": "What it is to know.", "source": "Who says it.", "idempotency_key": _KEY},
    ),
    McpTool(
        "warren_inputs",
        METHODS["session/inputs"],
        "See what waits",
        "List what waits to be said to a session: prompts in the queue, messages of other sessions, context.",
        _SESSION,
        read_only=True,
    ),
    McpTool(
        "warren_send",
        METHODS["peer/send"],
        "Speak to another session",
        "Say something to another session, in the name of one that both know each other by. Returns once it is in the "
        "other one's inbox; where that session is kept alive, a turn begins.",
        {
            "session_id": "The session in whose name it is said.",
            "to": "The other one's name.",
            "body": "The words.",
            "kind": "A request wants a response, a message does not.",
            "params": "Data that goes with a request.",
            "request_id": "The request that a response answers.",
            "status": "What came of the request that a response answers, such as ok.",
        },
    ),
    McpTool(
        "warren_sessions",
        METHODS["session/list"],
        "List sessions",
        "List the sessions, the one changed last first.",
        {
            "offset": "How many sessions to pass over.",
            "limit": "How many to return.",
            "labels": "Only sessions that carry all of these.",
            "include_archived": "Whether archived sessions are listed too.",
        },
        read_only=True,
    ),
    McpTool(
        "warren_read",
        METHODS["session/read"],
        "Read a session",
        "Show a session as of its last finished turn: its last answer, whether a turn runs now, what it has cost.",
        _SESSION,
        read_only=True,
    ),
    McpTool(
        "warren_history",
        METHODS["session/history"],
        "Read a conversation",
        "Show the messages of a session, oldest first.",
        {**_SESSION, "offset": "How many messages to pass over.", "limit": "How many to return."},
        read_only=True,
    ),
    McpTool(
        "warren_fork",
        METHODS["session/fork"],
        "Fork a session",
        "Make a new session that goes on from a message of another one. Nothing is run again, and the other one stays "
        "as it is. Returns the new session, by whose id warren_resume goes on.",
        {
            **_SESSION,
            "at": "How many messages to take over, as warren_history counts them; all where it is left out.",
            "labels": "Keys and values for the new session, besides those of the other one.",
            "title": "What people call the new session; as the other one where it is left out.",
        },
    ),
    McpTool(
        "warren_label",
        METHODS["session/label"],
        "Label a session",
        "Set labels of a session, or its title. What is not named stays as it is.",
        {
            **_SESSION,
            "labels": "Keys and values to find the session by, in warren_sessions; null takes a key away.",
            "title": "What people call the session.",
        },
        idempotent=True,
    ),
    McpTool(
        "warren_archive",
        METHODS["session/archive"],
        "Archive a session",
        "Retire a session: it stays readable where there is a store, is no longer listed, and cannot be resumed. A "
        "running turn ends first.",
        _SESSION,
        destructive=True,
        idempotent=True,
    ),
    McpTool(
        "warren_memory_search",
        METHODS["memory/search"],
        "Search the memory",
        "Find what was said earlier and has been summarised away since.",
        {
            "query": "What to look for, in words.",
            "session_id": "The session to search; needed unless the scope is `project`.",
            "scope": "One session, or all of them.",
            "limit": "How many hits to return.",
        },
        read_only=True,
    ),
)

TOOLS: Final[Mapping[str, McpTool]] = {tool.name: tool for tool in _TABLE}
"""Every tool by its name, in the order of the documentation."""
