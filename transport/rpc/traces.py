"""The place of a call in a trace, in its request: the member `traceparent` of the parameters' `_meta`. No I/O.

MCP and ACP have `_meta` too, and the same member in it.
"""

from typing import Any, Final

from warren.conversation import codec
from warren.reports.tracing import HEADER, TraceContext, caller, context_of

META: Final = "_meta"


def with_meta(params: Any) -> Any:
    """Return the parameters of a request with the place of the running task, if it has any."""
    place = caller()
    return params if place is None else {**codec.to_data(params), META: {HEADER: place.traceparent}}


def place_in(meta: object) -> TraceContext | None:
    """Return the place that the `_meta` of a request names."""
    return context_of(meta.get(HEADER)) if isinstance(meta, dict) else None
