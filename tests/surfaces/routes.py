"""All that a gateway answers over HTTP."""

from typing import Final

import httpx

from warren.transport.console.pages import console_pages
from warren.transport.http.probes import PATHS
from warren.transport.rest.routes import ROUTES

VALUES: Final = {
    "sha256": "0" * 64,
    "name": "nobody",
    "call_id": "c",
    "input_id": "i",
    "schedule_id": "s",
    "to": "n",
    "trigger_id": "t",
    "webhook_id": "w",
}
"""Values for the names in paths, but for that of a session."""
PAGES: Final = ("/openapi.json", "/metrics", *PATHS, *console_pages())
ALL: Final = [*((row.verb, row.path) for row in ROUTES), ("POST", "/mcp"), *(("GET", path) for path in PAGES)]


async def answered(http: httpx.AsyncClient, verb: str, path: str) -> tuple[int, str | None]:
    """Return the status and the type of an answer, without its body: a stream has no end."""
    async with http.stream(verb, path) as response:
        return response.status_code, response.headers.get("content-type")
