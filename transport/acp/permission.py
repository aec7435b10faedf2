"""Tool calls that wait for the approval of the client's user."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import trio

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.calls.facade import SessionService
from warren.conversation.categories import Decision
from warren.conversation.events import ToolApprovalRequested
from warren.transport.acp.updates import tool_call
from warren.transport.rpc.jsonrpc import Response

Ask = Callable[[str, Mapping[str, Any], Callable[[], None]], Awaitable[Response]]
"""Sends a request to the client, calls the function once the request is queued, and waits for the answer.

Cancelling it drops an answer that comes later."""

REQUEST: Final = "session/request_permission"
OPTIONS: Final[Mapping[str, tuple[str, bool]]] = {
    "allow_once": ("Allow", True),
    "allow_always": ("Always allow this tool", True),
    "reject_once": ("Reject", False),
    "reject_always": ("Always reject this tool", False),
}
"""The options that the client shows: name, and whether the call may run. The key is both the kind and the id."""
ALLOW_ALWAYS: Final = "allow_always"
REJECT_ALWAYS: Final = "reject_always"
ALWAYS: Final = frozenset({ALLOW_ALWAYS, REJECT_ALWAYS})
MAY_HAVE_RUN: Final = "may have run already: the process ended during it"
NO_ANSWER: Final = "the client returned no decision"
UPDATE: Final = "sessionUpdate"

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Permissions:
    """The user's decisions about the tool calls of one session. The session itself keeps the tools that always run.

    Attributes:
        service: the runtime.
        session_id: the session.
        ask: sends requests to the client.
        rejected: the tools that the user has rejected for all further calls.
    """

    service: SessionService
    session_id: str
    ask: Ask
    rejected: set[str] = attrs.field(factory=set)

    async def approve(
        self, event: ToolApprovalRequested, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Have the user allow or deny a call, unless all calls of the tool are rejected, and tell the runtime.

        A question of a running call is put in each case, as its text is another one each time. So is a call that may
        have run already, which the title says.

        `task_status` is started once the request to the client is queued. An answer that cannot be read denies the
        call. Nothing that the client does raises.
        """
        if event.name in self.rejected and not event.stands_alone:
            task_status.started()
            decision = Decision(allow=False)
        else:
            decision = await self._asked(event, task_status.started)
        answer, reason, remember = decision.answer, decision.reason, decision.remember
        try:
            await self.service.approve_tool(self.session_id, event.id, answer, reason=reason, remember=remember)
        except WarrenError as exc:  # it has timed out, or its turn has ended
            logger.info("session %s: the user's decision came too late: %s", self.session_id, exc)

    async def _asked(self, event: ToolApprovalRequested, sent: Callable[[], None]) -> Decision:
        response = await self.ask(REQUEST, _question(self.session_id, event), sent)
        chosen = chosen_of(response)
        if chosen is None:
            return Decision(allow=False)
        if chosen not in OPTIONS:
            logger.warning("session %s: no permission for %s: %s", self.session_id, event.name, _problem(response))
            return Decision(allow=False, reason=NO_ANSWER)
        if chosen == REJECT_ALWAYS and not event.stands_alone:
            self.rejected.add(event.name)
        return Decision(OPTIONS[chosen][1], remember=chosen == ALLOW_ALWAYS)


def chosen_of(response: Response) -> str | None:
    """Return the option that the user chose; None if the client cancelled, and "" if the answer cannot be read."""
    match response.result:
        case {"outcome": {"outcome": "selected", "optionId": str(option)}}:
            return option
        case {"outcome": {"outcome": "cancelled"}}:
            return None
    return ""


def _question(session_id: str, event: ToolApprovalRequested) -> Mapping[str, Any]:
    call = {name: value for name, value in tool_call(event.id, event.name, event.args).items() if name != UPDATE}
    if event.may_have_run:
        call["title"] = f"{event.name} ({MAY_HAVE_RUN})"
    kinds = OPTIONS.keys() - ALWAYS if event.stands_alone else OPTIONS
    options = [{"optionId": kind, "name": name, "kind": kind} for kind, (name, _) in OPTIONS.items() if kind in kinds]
    return {"sessionId": session_id, "toolCall": call, "options": options}


def _problem(response: Response) -> str:
    if isinstance(response.error, dict):
        return f"the client has an error: {str(response.error.get('message'))[:200]}"
    return "the client's answer cannot be read"
