"""Stores of the command line with turns in them."""

from collections.abc import Callable
from typing import Any, Final

from tests.transport.cli.serving import Client

HERE: Final = ("--store", "store")


async def turns(client: Client, session: str, beside: Any, look: Callable[[], int] = int) -> list[int]:
    """Run turns for as long as a process does; return what was seen at the end of each."""
    seen = []
    while beside.poll() is None:
        assert (await client.call("turn/start", session_id=session, prompt="go on"))["text"] == "go on"
        seen.append(look())
    return seen
