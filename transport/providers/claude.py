"""The reasoning of Claude models by their names, and the members of a request that ask for it. No I/O.

Sources: Anthropic's pages on thinking, effort, preserved thinking and structured outputs, November 2026.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from warren.base.fields import FieldValueError
from warren.conversation.options import Effort, ModelOptions

LEAST_BUDGET: Final = 1024
"""The smallest budget that the protocol takes."""
SPARE: Final = 1024
"""Tokens of a capped answer that reasoning leaves for its text."""
BINDING: Final = "thinking-binding-controls-2026-08-01"
"""The beta by which a request names the treatment of reasoning whose context has changed."""
# Models of other makers, and old ones: they reason by a budget of tokens, and have no effort.
_ADAPTIVE: Final = re.compile(r"claude-(?!3|(opus|sonnet|haiku)-4(-[0-5])?($|-\d{8}|-latest|@))")
# These models take no budget.
_UNBUDGETED: Final = re.compile(r"claude-(opus-4-[78]|fable|mythos)")
# These models reason always: they refuse `disabled`, budgets and forced tools.
_ALWAYS: Final = re.compile(r"claude-((fable|mythos)|[a-z]+-(5-[5-9]|[6-9]|\d\d)(?!\d))")
# These models take a schema for their answer; older ones, and models of other makers, are forced into a call of a tool.
_STRUCTURED: Final = re.compile(r"claude-((opus|sonnet|haiku)-(4-[5-9]|[5-9]|\d\d)(?!\d)|fable|mythos)")
# These models refuse reasoning whose context has changed, as after a compaction, unless the request lets them drop it.
_BOUND: Final = re.compile(r"claude-((fable|mythos)-5-[1-9]|[a-z]+-(5-[5-9]|[6-9]|\d\d))(?!\d)")
_BUDGETS: Final[Mapping[Effort, int]] = {
    "minimal": 1024,
    "low": 4096,
    "medium": 10240,
    "high": 20480,
    "xhigh": 25600,
    "max": 30976,
}
_SHOWN: Final = {"type": "adaptive", "display": "summarized"}
_DROP: Final = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
_IN_SCHEMAS: Final = ("type", "enum", "const", "title", "description", "$ref", "format", "required")


def headers(model: str) -> dict[str, str]:
    """Return the headers that requests to a model need besides those of the protocol."""
    return {"anthropic-beta": BINDING} if _BOUND.search(model) else {}


def check(model: str, options: ModelOptions) -> None:
    """Refuse options of reasoning that a model does not have. Raises FieldValueError that names the option."""
    budget, asked = options.reasoning_tokens, options.effort not in (None, "none")
    if options.effort == "none" and _ALWAYS.search(model):
        raise FieldValueError("effort", f"{model} cannot turn its reasoning off")
    if budget is not None and (_UNBUDGETED.search(model) or _ALWAYS.search(model)):
        raise FieldValueError("reasoning_tokens", f"{model} has no such cap; use `effort`")
    if budget is not None and not LEAST_BUDGET <= budget < (options.max_tokens or budget + 1):
        raise FieldValueError("reasoning_tokens", f"must be at least {LEAST_BUDGET} and below `max_tokens` for {model}")
    reasons = asked or budget is not None or _ALWAYS.search(model)
    if reasons and options.temperature not in (None, 1):
        raise FieldValueError("temperature", f"must be 1 while {model} reasons")


def forces_tools(model: str, schema: Mapping[str, Any]) -> bool:
    """Return whether an answer of a schema is forced into a tool call: if the model does not take the schema itself."""
    return _ALWAYS.search(model) is None and not (_STRUCTURED.search(model) and output_format(schema))


def reasoning(model: str, options: ModelOptions, cap: int, *, forced: bool, bare: bool = False) -> dict[str, Any]:
    """Return the members of a request that ask for reasoning.

    Args:
        model: the model.
        options: the options, which `check` has let through.
        cap: the cap of the answer, in tokens.
        forced: whether the answer is forced into a tool call, which the protocol allows only without reasoning.
        bare: whether the context ends with calls of tools before which nothing of this model's reasoning stands, as
            after a change of the model; there the protocol refuses a budget.
    """
    effort, budget = options.effort, options.reasoning_tokens
    if _ALWAYS.search(model):
        return {"thinking": _SHOWN | (_DROP if _BOUND.search(model) else {})} | _effort(effort)
    if forced or effort == "none":
        return {"thinking": {"type": "disabled"}} if _ADAPTIVE.search(model) else {}
    if budget is None and not _ADAPTIVE.search(model):
        budget = None if effort is None else _BUDGETS[effort]
    if budget is not None:
        if bare:
            return {}
        most = min(budget, cap - SPARE)
        return {"thinking": {"type": "enabled", "budget_tokens": most}} if most >= LEAST_BUDGET else {}
    return {} if effort is None else {"thinking": _SHOWN} | _effort(effort)


def _effort(effort: Effort | None) -> dict[str, Any]:
    if effort is None:
        return {}
    return {"output_config": {"effort": "low" if effort == "minimal" else effort}}


def output_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the member of `output_config` for an answer of a schema; nothing for one that has to be asked for."""
    closed = _closed(schema)
    return {} if closed is None else {"format": {"type": "json_schema", "schema": closed}}


def _closed(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema as the protocol takes it: objects have no members but those named, and no bounds are left.

    None if the protocol cannot express it, as for an object with any members.
    """
    made: dict[str, Any] = {name: schema[name] for name in _IN_SCHEMAS if name in schema}
    if schema.get("type") == "object":
        if schema.get("additionalProperties") or "properties" not in schema:
            return None
        made["additionalProperties"] = False
    for name in ("properties", "$defs"):
        if name in schema:
            made[name] = {key: _closed(each) for key, each in schema[name].items()}
    for name, into in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if name in schema:
            made[into] = [_closed(each) for each in schema[name]]
    if "items" in schema:
        made["items"] = _closed(schema["items"])
    inside = [*made.get("properties", {}).values(), *made.get("$defs", {}).values()]
    inside += [*made.get("anyOf", ()), *made.get("allOf", ()), made.get("items", made)]
    return None if any(each is None for each in inside) else made
