"""`warren complete`: the result of a tool call that waits for one from outside."""

import click

from warren.base.errors import InvalidParamsError
from warren.calls.base import made
from warren.calls.turns import CompleteRequest
from warren.conversation import codec
from warren.conversation.completion import CompletionToken
from warren.transport.cli.command import command
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.options import Options, reached_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.store.chosen import check_place
from warren.transport.cli.terminal.results import show_text
from warren.transport.cli.terminal.streams import read_prompt


@command(
    "warren complete $TOKEN 'The build passed.'",
    'warren complete $TOKEN --json \'{"state": "passed"}\' --server ws://127.0.0.1:8420',
    "make 2>&1 | tail | warren complete $TOKEN --error",
)
@click.argument("token", type=text_of)
@click.argument("result", type=text_of, required=False)
@click.option("--json", "is_json", is_flag=True, help="RESULT is JSON, not a text.")
@click.option("--error", "is_error", is_flag=True, help="The work failed, and RESULT says why.")
@reached_options
def complete(token: str, result: str | None, *, is_json: bool, is_error: bool, options: Options) -> None:
    """Give the RESULT of a tool call that waits for one from outside.

    TOKEN is the completion token that the tool has handed out. Without RESULT, or with -, it is read from stdin. A
    second time, the same result changes nothing.
    """
    made(CompleteRequest, token, None)  # before the result is read: it may come from a pipe
    check_place(options)
    given: object = read_prompt(result)
    if is_json:
        try:
            given = codec.parse(str(given))
        except ValueError as exc:
            raise InvalidParamsError.at("$.result", f"is not JSON: {exc}") from exc
    call = made(CompleteRequest, token, given, is_error=is_error)

    async def work() -> str:
        async with open_service(options, stored=True, takes_up=False) as service:
            await service.perform(call)
        return CompletionToken.read(token).session_id

    session_id = execute(work, options)
    show_text(options, {"session_id": session_id, "completed": True}, f"completed a call of {session_id}\n")
