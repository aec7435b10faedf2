"""The tools that MCP clients call: the method of each, and the texts by which a model decides to call it.

The arguments of a tool are the parameters of its method, with their sentences.
"""

from collections.abc import Mapping
from typing import Any, Final

from warren.base.values import frozen
from warren.calls import agents, schedules, triggers, turns, webhooks
from warren.calls.base import Call
from warren.calls.reading import ForgetRequest, HistoryRequest, SearchRequest
from warren.calls.sessions import ArchiveRequest, DelegateRequest, ForkRequest, LabelRequest, ListRequest, ReadRequest
from warren.conversation import aliases
from warren.transport.rpc.methods import METHODS, Method


@frozen
class McpTool:
    """One tool: a method of the table under another name.

    Attributes:
        name: the name that clients call.
        method: the method; its parameters are the tool's arguments.
        title: the title for people.
        doc: the description for the model that decides whether to call the tool.
        read_only: whether the tool changes nothing.
        destructive: whether the tool takes something away.
        idempotent: whether a second call with the same arguments changes nothing.
        open_world: whether the tool calls a model, and so reaches all that the model's tools reach.
    """

    name: str
    method: Method[Any, Any]
    title: str
    doc: str
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


def _method_of(cls: type[Call[Any]]) -> Method[Any, Any]:
    return METHODS[cls.facts.name]


_TABLE: Final = (
    McpTool(
        "warren_run",
        _method_of(turns.SessionCall),
        "Start a session",
        "Start a new session and run its first turn. Returns the answer and the session's id, with which warren_resume "
        "continues it. The session outlives this call and, if there is a store, the server.",
        open_world=True,
    ),
    McpTool(
        "warren_resume",
        _method_of(turns.TurnCall),
        "Continue a session",
        "Run the next turn of a session. A session runs one turn at a time: if another turn runs, this fails with "
        "SESSION_BUSY, unless the mode says otherwise.",
        open_world=True,
    ),
    McpTool(
        "warren_wait",
        _method_of(turns.WaitRequest),
        "Wait for a turn",
        "Wait until the turn that a session runs, or the next one if prompts wait, has ended. Returns its answer, as "
        "warren_resume does. For a turn whose own call was lost, and for the work of a child session, also if that has "
        "ended before.",
        read_only=True,
    ),
    McpTool(
        "warren_interrupt",
        _method_of(turns.InterruptRequest),
        "Interrupt a turn",
        "End the turn that a session runs, whoever started it. Its results so far are kept.",
        destructive=True,
    ),
    McpTool(
        "warren_approve",
        _method_of(turns.ApproveRequest),
        "Approve a tool call",
        "Allow or deny a tool call of a session's model that waits for approval. The progress of the turn announces "
        "such a call. The first answer counts.",
    ),
    McpTool(
        "warren_complete",
        _method_of(turns.CompleteRequest),
        "Complete a tool call",
        "Give the result of a tool call of a session's model that waits for one from outside, by the completion token "
        "that its tool has handed out.",
        idempotent=True,
    ),
    McpTool(
        "warren_approvals",
        _method_of(turns.ApprovalsRequest),
        "List calls that wait for approval",
        "List the tool calls of all sessions that wait for approval, the oldest first, each with its session, its "
        "arguments and the time at which it is refused. warren_approve decides on one.",
        read_only=True,
    ),
    McpTool(
        "warren_agents",
        _method_of(agents.AgentsRequest),
        "List agents",
        "List the agents by name, each with what it is for. warren_run makes a session of one.",
        read_only=True,
    ),
    McpTool(
        "warren_agent",
        _method_of(agents.AgentRequest),
        "Show an agent",
        "Show an agent: its instructions, tools and bounds, and the versions of it that sessions were made of.",
        read_only=True,
    ),
    McpTool(
        "warren_schedule",
        _method_of(schedules.ScheduleRequest),
        "Make a schedule",
        "Make a schedule: a prompt that is due once (`at`), every so often (`every`) or by a cron expression, for a "
        "session or for a new one each time.",
    ),
    McpTool(
        "warren_schedules",
        _method_of(schedules.SchedulesRequest),
        "List schedules",
        "List the schedules, the oldest first, each with the time at which it is due next and its newest runs.",
        read_only=True,
    ),
    McpTool(
        "warren_schedule_change",
        _method_of(schedules.ScheduleChange),
        "Change a schedule",
        "Change a schedule, pause it, or let it go on. What is not given stays as it is.",
        idempotent=True,
    ),
    McpTool(
        "warren_schedule_delete",
        _method_of(schedules.ScheduleDeletion),
        "Remove a schedule",
        "Remove a schedule. A prompt of it that waits already stays.",
        idempotent=True,
    ),
    McpTool(
        "warren_trigger",
        _method_of(triggers.TriggerRequest),
        "Make a trigger",
        "Make a trigger: a prompt that comes when another service makes a signed HTTP call, for a session or for a new "
        "one each time. The answer has the secret, and no other answer ever again.",
    ),
    McpTool(
        "warren_triggers",
        _method_of(triggers.TriggersRequest),
        "List triggers",
        "List the triggers, the oldest first, each with its newest deliveries.",
        read_only=True,
    ),
    McpTool(
        "warren_trigger_change",
        _method_of(triggers.TriggerChange),
        "Change a trigger",
        "Change a trigger, pause it, let it go on, or give it a new secret. What is not given stays as it is.",
    ),
    McpTool(
        "warren_trigger_delete",
        _method_of(triggers.TriggerDeletion),
        "Remove a trigger",
        "Remove a trigger. A prompt of it that waits already stays.",
        idempotent=True,
    ),
    McpTool(
        "warren_webhook",
        _method_of(webhooks.WebhookRequest),
        "Make a webhook",
        "Make a webhook: an address to which ends of turns, calls that wait and warnings of budgets are posted, signed "
        "with a secret that only this answer has.",
    ),
    McpTool(
        "warren_webhooks",
        _method_of(webhooks.WebhooksRequest),
        "List webhooks",
        "List the webhooks, the oldest first, each with the number of its deliveries that wait or have failed.",
        read_only=True,
    ),
    McpTool(
        "warren_webhook_change",
        _method_of(webhooks.WebhookChange),
        "Change a webhook",
        "Change a webhook, pause it, let it go on, or give it a new secret. What is not given stays as it is.",
    ),
    McpTool(
        "warren_webhook_delete",
        _method_of(webhooks.WebhookDeletion),
        "Remove a webhook",
        "Remove a webhook, with all that is still to be posted to it.",
        idempotent=True,
    ),
    McpTool(
        "warren_deliveries",
        _method_of(webhooks.DeliveriesRequest),
        "List deliveries",
        "List what was posted to a webhook and what is still to be, the newest first.",
        read_only=True,
    ),
    McpTool(
        "warren_resend",
        _method_of(webhooks.ResendRequest),
        "Attempt deliveries again",
        "Attempt deliveries of a webhook again that have failed for good, one or all.",
        idempotent=True,
    ),
    McpTool(
        "warren_inject_context",
        _method_of(turns.ContextRequest),
        "Tell a session something",
        "Give a session's model a text that is no prompt. The model reads it at the next step of the running turn, or "
        "with the next turn. No turn begins.",
    ),
    McpTool(
        "warren_inputs",
        _method_of(turns.InputsRequest),
        "List waiting inputs",
        "List the inputs that wait in a session's inbox: prompts in the queue, messages of other sessions, context.",
        read_only=True,
    ),
    McpTool(
        "warren_send",
        _method_of(turns.PeerMessage),
        "Send a message to a session",
        "Send a message to another session, in the name of a session; both must trust each other by name. Returns when "
        "the message is in the other session's inbox. If that session is kept alive, a turn begins.",
    ),
    McpTool(
        "warren_sessions",
        _method_of(ListRequest),
        "List sessions",
        "List the sessions, the most recently changed one first.",
        read_only=True,
    ),
    McpTool(
        "warren_read",
        _method_of(ReadRequest),
        "Read a session",
        "Show a session as of its last finished turn: its last answer, whether a turn runs now, its use of tokens.",
        read_only=True,
    ),
    McpTool(
        "warren_history",
        _method_of(HistoryRequest),
        "Read a conversation",
        "Show the messages of a session, oldest first.",
        read_only=True,
    ),
    McpTool(
        "warren_fork",
        _method_of(ForkRequest),
        "Fork a session",
        "Make a new session of the first messages of another one, which stays as it is. No model is called. Returns "
        "the new session, which warren_resume continues by its id.",
    ),
    McpTool(
        "warren_delegate",
        _method_of(DelegateRequest),
        "Delegate work to a child session",
        "Make a new session that does a piece of work for another one, within what that one may do and spend. Returns "
        "its id at once; warren_wait waits for the answer of the session of that id.",
        open_world=True,
    ),
    McpTool(
        "warren_label",
        _method_of(LabelRequest),
        "Label a session",
        "Change the labels or the title of a session. Labels that are not named stay; warren_sessions finds sessions "
        "by their labels.",
        idempotent=True,
    ),
    McpTool(
        "warren_archive",
        _method_of(ArchiveRequest),
        "Archive a session",
        "Archive a session: with a store it can still be read, it is no longer listed, and it cannot be continued. A "
        "running turn ends first.",
        destructive=True,
        idempotent=True,
    ),
    McpTool(
        "warren_memory_search",
        _method_of(SearchRequest),
        "Search the memory",
        "Search messages that have left the context of their session by compaction.",
        read_only=True,
    ),
    McpTool(
        "warren_memory_forget",
        _method_of(ForgetRequest),
        "Forget remembered texts",
        "Remove texts from the memory for good: one hit of a search by its text_id, those of a turn, or all that are "
        "remembered of a session. The messages stay in the history of the session.",
        destructive=True,
        idempotent=True,
    ),
)

TOOLS: Final[Mapping[str, McpTool]] = {tool.name: tool for tool in _TABLE}
"""Every tool by its name, in the order of the documentation."""
ALIASES: Final[Mapping[str, str]] = {alias: f"warren_{name}" for alias, name in aliases.TOOLS.items()}
"""Other names under which tools can be called; they are not listed."""
