"""The handlers of calls: plain functions of the runtime and the call, and the table of all of them."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from warren.actors.calls.handlers import (
    agents,
    creating,
    operators,
    reading,
    schedules,
    sessions,
    triggers,
    turns,
    webhooks,
)
from warren.actors.calls.local import Local

Handler = Callable[[Local, Any], Coroutine[Any, Any, Any]]
HANDLERS: Final[Mapping[type, Handler]] = {
    **creating.HANDLERS,
    **agents.HANDLERS,
    **turns.HANDLERS,
    **sessions.HANDLERS,
    **reading.HANDLERS,
    **operators.HANDLERS,
    **schedules.HANDLERS,
    **triggers.HANDLERS,
    **webhooks.HANDLERS,
}
"""The handler of each class of calls."""
