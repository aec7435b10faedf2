"""Arguments of the wrong type: every argument of every method names itself."""

import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.parity.arguments import METHODS, OPENED, needed
from tests.support.runtime import open_runtime
from warren.base.errors import InvalidParamsError
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation.budget import Budget
from warren.settings.config import Config

ANYTHING: Final[Mapping[str, Sequence[object]]] = {
    "none": [None],
    "flag": [True, False],
    "number": [1, 20],
    "text": ["a text"],
    "list": [[1], [[]], [[20], 1]],
    "object": [{"a text": 1}, {"a text": None}],
    "odd keys": [{1: "a text"}],
    "budget": [Budget(max_steps=5)],
    "compaction": [CompactionConfig()],
    "callable": [print, len],
    "never": [1.5, float("nan"), b"hi", object(), {1, 2}],
}
"""Values of each kind; those of the last one are of no argument's type."""
FITS: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(kinds.split("/"))
    for name, kinds in {
        "session_id": "text",
        "prompt": "text",
        "query": "text",
        "model": "text/none",
        "provider": "text/none",
        "system_prompt": "text/none",
        "agent": "none",
        "version": "text/none",
        "instructions": "text/none",
        "max_tokens": "number/none",
        "temperature": "number/never/none",
        "top_p": "number/never/none",
        "prompt_cache": "text/none",
        "effort": "none",
        "reasoning_tokens": "number/none",
        "fallback": "none",
        "hosted_tools": "none",
        "labels": "none",
        "title": "text/none",
        "budget": "budget/none",
        "compaction": "compaction/none",
        "compactor": "callable/none",
        "hooks": "",
        "tools": "none",
        "extra_tools": "",
        "output_type": "none",
        "attachments": "",
        "sha256": "text",
        "name": "text",
        "on_event": "callable/none",
        "on_begin": "callable/none",
        "offset": "number",
        "by": "",
        "limit": "number",
        "include_archived": "flag",
        "turn_state": "none",
        "delegated_by": "text/none",
        "children": "flag",
        "after_seq": "number/none",
        "at": "number/none",
        "scope": "",
        "overrides": "none",
        "approvals": "none",
        "output_schema": "object/odd keys/none",
        "structured_output_retries": "number/none",
        "keep_alive": "flag/none",
        "durability": "none",
        "peer": "none",
        "mode": "",
        "idempotency_key": "text/none",
        "not_before": "none",
        "text": "text",
        "source": "text/none",
        "input_id": "text",
        "to": "text",
        "body": "text",
        "kind": "",
        "params": "none",
        "request_id": "none",
        "status": "none",
        "call_id": "text",
        "decision": "",
        "reason": "text/none",
        "remember": "flag",
        "ask_again": "none",
        "since": "none",
        "until": "none",
        "action": "none",
        "all_tenants": "flag",
        "cursor": "none",
        "turn": "number/none",
        "text_id": "none",
        "token": "",
        "result": "none/flag/number/text/list/object/odd keys/never",
        "is_error": "flag",
        "schedule_id": "text",
        "trigger_id": "text",
        "scheme": "",
        "secret": "text/none",
        "webhook_id": "text",
        "url": "text",
        "events": "none",
        "rotate_secret": "flag",
        "state": "none",
        "delivery_id": "text/none",
        "new_session": "none",
        "every": "none",
        "cron": "none",
        "zone": "",
        "start": "none",
        "end": "none",
        "misfire": "",
        "overlap": "",
        "paused": "flag",
    }.items()
}
"""Of which kinds an argument may be; what is wrong inside of one is wrong too."""
NULLABLE: Final = {
    ("create_session", "prompt"),
    ("search_memory", "session_id"),
    ("audit", "session_id"),
    ("create_schedule", "session_id"),
    ("schedules", "session_id"),
    ("create_trigger", "session_id"),
    ("triggers", "session_id"),
    *(("change_trigger", name) for name in ("prompt", "overlap", "paused")),
    ("create_webhook", "session_id"),
    ("webhooks", "session_id"),
    *(("change_webhook", name) for name in ("url", "paused")),
    *(("change_schedule", name) for name in ("prompt", "zone", "misfire", "overlap", "paused")),
}
ARGUMENTS: Final = [
    (method, name)
    for method in METHODS
    for name in inspect.signature(getattr(SessionService, method)).parameters
    if name != "self"
]


def wrong(method: str, name: str) -> list[object]:
    """Return values that do not fit an argument."""
    fits = FITS[name] | ({"none"} if (method, name) in NULLABLE else set())
    fits |= {"object"} if (method, name) == ("label", "labels") else set()  # None takes a label away
    return [value for kind, values in ANYTHING.items() if kind not in fits for value in values]


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[SessionService, str]]:
    """Run a service with one session."""
    async with open_runtime(config=Config(model="echo")) as service:
        yield service, (await service.create_session("hi")).session_id


async def call(service: SessionService, method: str, arguments: Mapping[str, Any]) -> None:
    """Call a method; one that opens something is entered and left."""
    if method in OPENED:
        async with getattr(service, method)(**arguments):
            return
    await getattr(service, method)(**arguments)


@pytest.mark.parametrize(("method", "name"), ARGUMENTS, ids=map(".".join, ARGUMENTS))
async def test_a_wrong_type_names_its_argument(method: str, name: str) -> None:
    """Whatever else it is, it is INVALID_PARAMS under the argument's name; nothing is made and nothing has changed."""
    async with opened() as (service, session_id):
        for value in wrong(method, name):
            with pytest.raises(InvalidParamsError) as caught:
                await call(service, method, needed(method, session_id) | {name: value})
            path = str(caught.value.body()["details"]["path"])
            assert path.startswith(f"$.{name}"), (path, value)
        assert [row.message_count for row in (await service.list()).sessions] == [2]
