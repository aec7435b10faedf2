"""Hooks of schemathesis: OpenAPI cannot say of a parameter that it is a JSON schema, or which tools there are."""

from collections.abc import Mapping

import schemathesis
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

from warren.actors.tools.posting import address_problem
from warren.base.errors import InvalidParamsError
from warren.calls.schedules import ScheduleChange, ScheduleRequest
from warren.conversation import codec
from warren.conversation.categories import CATEGORIES

TIMES = ("at", "every", "cron", "zone", "start", "end")


@schemathesis.hook
def filter_body(context: schemathesis.HookContext, body: object) -> bool:
    """Pass over a body that the gateway refuses with 422, though it fits the document.

    Its `output_schema` is an object and no schema, it enables tools of a kind that the runtime does not have, or it
    has a completion token, which nobody has signed; or the times of a schedule are none.
    """
    if not isinstance(body, Mapping):
        return True
    if context.operation is not None and context.operation.path.startswith("/schedules"):
        return _has_times(body)
    if context.operation is not None and context.operation.path.startswith("/webhooks"):
        return _is_webhook(body)
    switches = body.get("overrides")
    enables = isinstance(switches, Mapping) and any(switches.get(category) == "enable" for category in CATEGORIES)
    return not (enables or "token" in body) and _is_schema(body.get("output_schema"))


def _is_schema(value: object) -> bool:
    """Return whether an object, if it is one, is a JSON schema."""
    try:
        if isinstance(value, Mapping):
            Draft202012Validator.check_schema(value)
    except SchemaError:
        return False
    return True


def _is_webhook(body: Mapping[str, object]) -> bool:
    """Return whether what is said of a webhook goes together, and its address may be one of the public internet."""
    url, labels = body.get("url"), body.get("labels")
    if isinstance(url, str) and address_problem(url, ()) is not None:
        return False
    both = labels is not None and body.get("session_id") is not None
    return not (both or isinstance(body.get("secret"), str) or body.get("events") == [])


def _has_times(body: Mapping[str, object]) -> bool:
    """Return whether the times of a schedule are good ones, and whether they go together."""
    kind: type = ScheduleRequest if "prompt" in body and "schedule_id" not in body else ScheduleChange
    given = {name: value for name, value in body.items() if name in TIMES}
    needed = {"prompt": "go"} if kind is ScheduleRequest else {"schedule_id": "s"}
    try:
        codec.from_data(kind, {**needed, **given})
    except InvalidParamsError:
        return False
    return True
