"""`warren approvals`, `approve` and `deny`: tool calls that wait for approval, and the decision about one."""

from typing import Any, Final

import click

from warren.calls.base import made
from warren.calls.turns import ApprovalsRequest, ApproveRequest
from warren.conversation import codec
from warren.conversation.categories import Answer
from warren.conversation.views import ApprovalPage, ListedApproval
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.runtime import at_session, execute, open_service
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, reached_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import moment, note_damaged, show_rows

COLUMNS: Final = ("session", "call", "tool", "since", "until", "title", "arguments")


@command(
    "warren approvals --server ws://127.0.0.1:8420",
    "warren approvals --output json | jq -r '.approvals[].name'",
)
@of_field(ApprovalsRequest, "offset", variable=False, default=0, show_default=True)
@of_field(ApprovalsRequest, "limit", variable=False, default=50, show_default=True)
@reached_options
def approvals(offset: int, limit: int, options: Options) -> None:
    """List the tool calls that wait for approval, of all sessions.

    `warren approve` and `warren deny` decide about one. Of calls that another process has in memory alone, only its
    own server knows: ask it with --server.

    Piped, each is a line of fields between tabs: session, call, tool, since, until, title, arguments.
    """
    wanted = made(ApprovalsRequest, offset=offset, limit=limit)

    async def work() -> ApprovalPage:
        async with open_service(options, stored=True, takes_up=False) as service:
            return await service.perform(wanted)

    page = execute(work, options)
    show_result(options, page, _show, page)


@command("warren approve last toolu_01A", "warren approve 4f9c call-1 --server ws://127.0.0.1:8420", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("call", type=text_of)
@of_field(ApproveRequest, "remember", variable=False, is_flag=True)
@reached_options
def approve(session: str, call: str, *, remember: bool, options: Options) -> None:
    """Allow a tool call that waits for approval: the session's turn goes on with it.

    CALL is its id, as `warren approvals` lists it. Without a server the decision is stored, and the turn goes on in the
    next process that serves the store.
    """
    _decide(options, session, call, "allow", remember=remember)


@command("warren deny last toolu_01A --reason 'Not on a Friday.'", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("call", type=text_of)
@of_field(ApproveRequest, "reason", metavar="TEXT", variable=False)
@reached_options
def deny(session: str, call: str, reason: str | None, options: Options) -> None:
    """Deny a tool call that waits for approval: the session's turn goes on without it.

    CALL is its id, as `warren approvals` lists it. Without a server the decision is stored, and the turn goes on in the
    next process that serves the store.
    """
    _decide(options, session, call, "deny", reason=reason)


def _decide(options: Options, session: str, call: str, answer: Answer, **more: Any) -> None:
    at_session(options, session, lambda service, found: service.approve_tool(found, call, answer, **more))
    show_text(options, {"decided": True}, f"{call}: {'allowed' if answer == 'allow' else 'denied'}\n")


def _show(streams: Streams, page: ApprovalPage) -> None:
    note_damaged(streams, "waiting call", page.damaged)
    show_rows(streams, COLUMNS, [_row(each) for each in page.approvals], "nothing waits for approval")


def _row(each: ListedApproval) -> tuple[str, ...]:
    args = codec.encode(each.args).decode()
    marks = " (may have run)" if each.may_have_run else " (asks)" if each.question_of is not None else ""
    marks += "" if each.question is None else f" ({each.question})"
    times = moment(each.since), moment(each.until)
    return each.session_id, each.call_id, f"{each.name}{marks}", *times, each.title or "", args
