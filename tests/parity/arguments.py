"""Good arguments for every method of the service."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from tests.support.completions import token_for
from warren.calls.facade import RuntimeService, SessionService

GOOD: Final[Mapping[str, object]] = {
    "prompt": "hi",
    "query": "boat",
    "text": "hi",
    "input_id": "an-input",
    "to": "somebody",
    "body": "hi",
    "call_id": "call-1",
    "decision": "allow",
    "sha256": "0" * 64,
    "token": token_for("no such session"),
    "result": "done",
    "name": "somewhere",
    "labels": {"team": "red"},
    "schedule_id": "a-schedule",
    "trigger_id": "a-trigger",
    "webhook_id": "a-webhook",
    "url": "https://example.org/hook",
}
TOGETHER: Final[Mapping[str, Mapping[str, object]]] = {"create_schedule": {"every": "1h"}}
"""Arguments of which a method needs one or another."""
STREAMS: Final = ("stream_session", "stream_turn")
OPENED: Final = ("subscribe", "watch", *STREAMS)
"""Methods whose results are entered."""
METHODS: Final = [
    name
    for name in vars(SessionService)
    if not name.startswith("_")
    and name not in ("perform", "stream")  # all others are made of the two
    and len(inspect.signature(getattr(SessionService, name)).parameters) > 1
]


def needed(method: str, session_id: str) -> dict[str, Any]:
    """Return good arguments for those that have no default."""
    good = {**GOOD, "session_id": session_id}
    parameters = inspect.signature(getattr(RuntimeService, method)).parameters.values()
    wanted = {each.name for each in parameters if each.default is each.empty} | {"session_id"}
    found = {each.name: good[each.name] for each in parameters if each.name in wanted & good.keys()}
    return {**found, **TOGETHER.get(method, {})}
