"""The command `warren rpc`, its arguments and its help."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from warren.transport.cli.help import examples
from warren.transport.cli.option import option
from warren.transport.cli.options import gather, serving_options
from warren.transport.cli.refusal import AnsweringCommand
from warren.transport.cli.values import folder_of, realm_of, text_of

F = TypeVar("F", bound=Callable[..., Any])

IGNORED: Final = "An option of rkat-rpc that has no meaning here."
IGNORED_VALUES: Final = (
    *("instance", "realm_backend", "context_root", "user_config_root"),
    *("tcp", "live_ws", "live_ws_scheme", "live_tool_timeout_ms", "realtime_ws"),
)
IGNORED_FLAGS: Final = ("allow_remote", "live_webrtc")
LISTENING: Final = ("tcp", "live_ws", "realtime_ws", "live_webrtc")
"""Those of them that ask for another transport. They are accepted, because the SDKs pass them, with a warning."""


def _ignored_options(function: F) -> F:
    """Accept the options of rkat-rpc that have no meaning here."""
    for name in IGNORED_VALUES:
        function = click.option(f"--{name.replace('_', '-')}", hidden=True, help=IGNORED)(function)
    for name in IGNORED_FLAGS:
        function = click.option(f"--{name.replace('_', '-')}", is_flag=True, hidden=True, help=IGNORED)(function)
    return function


@click.command(
    cls=AnsweringCommand,
    epilog=examples(
        "warren rpc --model claude-sonnet-5",
        """echo '{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}' | warren rpc""",
    ),
)
@option(
    "--contract",
    is_flag=False,
    flag_value="client",
    type=text_of,
    metavar="[VERSION]",
    help="Speak Meerkat's protocol: of this version, as 0.6, or without a value of the one that the client names.",
)
@click.option("--realm", type=realm_of, metavar="NAME", help="Use the store of this name, below the usual one.")
@click.option(
    "--isolated", is_flag=True, help="Use a new store; without --state-root it is gone at the end of the process."
)
@click.option("--state-root", type=folder_of, metavar="DIR", help="The folder of the stores, instead of --store.")
@_ignored_options
@serving_options
def rpc(
    contract: str | None,
    realm: str | None,
    *,
    isolated: bool,
    state_root: Path | None,
    **given: Any,
) -> None:
    """Serve sessions to the program that starts this one.

    It speaks JSON-RPC over stdin and stdout, one message a line. The end of stdin, SIGTERM and Ctrl-C end it in order:
    running turns are interrupted and stored; a second signal exits at once.

    With --contract it stands in for rkat-rpc, whose options it accepts: point Meerkat's clients at a script with `exec
    warren rpc --contract 0.9 "$@"` in it.

    If the server cannot start, the client's first request is answered with the error.
    """
    from warren.transport.cli import rpc as serving  # noqa: PLC0415 - help does without it

    listening = [name for name in LISTENING if given[name] not in (None, False)]
    for name in (*IGNORED_VALUES, *IGNORED_FLAGS):
        del given[name]
    if listening:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in listening)
        click.echo(f"Note: {named}: not available here; only stdin and stdout are served.", err=True)
    serving.rpc(gather(given), serving.Realm(realm, isolated, state_root), contract)
