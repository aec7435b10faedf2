"""Posts the event of a hook to a web address, and reads the answer."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from warren.actors.hooks.told import HookError, Told
from warren.actors.tools.posting import Poster
from warren.settings.hook_config import HookEntry

MOST: Final = 1024 * 1024
"""Bytes of an answer."""
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


async def post_event(entry: HookEntry, body: bytes, environ: Mapping[str, str], poster: Poster) -> Told:
    """Post the JSON of an event to a hook's address, and return the answer as that of a command.

    A status 2xx is exit code 0, and 403 is exit code 2 with the body as the reason. Redirects are not followed.

    Args:
        entry: the hook.
        body: the JSON.
        environ: the variables that its headers may name.
        poster: posts; its limits say which addresses can be reached.

    Raises:
        HookError: if there is no answer in time, or one of another status, or if it is too long.
    """
    headers = {name: _filled(text, environ) for name, text in entry.headers.items()}
    headers |= {"content-type": "application/json"}
    answer, text = await poster.ask(entry.url or "", headers, body, seconds=entry.seconds, most=MOST)
    if answer.status == HTTPStatus.FORBIDDEN:
        return Told(2, err=text.decode("utf-8", "replace"), plain=False)
    if answer.problem is not None:
        raise HookError(answer.problem)
    return Told(0, text.decode("utf-8", "replace"), plain=False)


def _filled(text: str, environ: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: environ.get(found[1] or found[2], ""), text)
