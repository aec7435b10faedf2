"""The audit as plain values: no entry has the text of a prompt, an answer or a label, or a token."""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, get_args

import attrs

from warren.base.fields import LARGEST, FieldValueError
from warren.base.principals import Principal
from warren.base.values import frozen
from warren.conversation.views import DamagedRow

Action = Literal[
    "create",
    "fork",
    "archive",
    "delete",
    "forget",
    "interrupt",
    "approve",
    "deny",
    "complete",
    "schedule",
    "unschedule",
    "trigger",
    "untrigger",
    "webhook",
    "unwebhook",
    "login",
    "token_added",
    "token_changed",
    "token_removed",
    "read",
    "drain",
    "prune",
    "went_back",
]
"""The action of an entry.

`create`, `fork`, `archive` and `delete` change the sessions of the store: the entry is there if the change is.
`forget` removes texts of the memory. `interrupt`, `approve` and `deny` are about a running turn, and so is `complete`:
the result of a tool call came from outside. `schedule` makes or changes a schedule, and `unschedule` removes one;
`trigger` and `untrigger` do the same with triggers, and `webhook` and `unwebhook` with webhooks; `webhook` attempts
dead deliveries again, too. `login` is a client that was not let in. The tokens are those of the gateway's file, or of
the store's table. `read` is work of an operator in another tenant, or a read of all of them. `drain` asks a node to
end in order. `prune` removes old entries of the audit itself. `went_back` is the discovery of a node that the store
has gone back to an earlier state.
"""
Outcome = Literal["done", "refused"]
By = Literal["principal", "operator", "retention"]
"""The kind of an entry's actor, as names of principals may have any form.

`principal` is a caller within its own tenant, `operator` one that works in the tenant of others, and `retention` the
removal of what is older than the settings allow.
"""
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
MAX_ENTRIES: Final = 1_000
calling_from: Final[ContextVar[str | None]] = ContextVar("calling_from", default=None)
"""The address of the client that a task serves, for the entries of its calls; None for none. Child tasks inherit it."""
_CURSOR: Final = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,19})", re.ASCII)


@frozen(kw_only=True)
class AuditEntry:
    """One line of the audit.

    Attributes:
        at: time at which the node was asked for the action.
        action: the action.
        who: the name of the principal; empty if it is not known, as for a client that was not let in, and for tokens.
            That of an operator is `TENANT/NAME`, by the tenant of its token.
        by: whether it is a principal of the tenant, an operator or the retention; None if there is none, or if an entry
            of an earlier release does not tell.
        tenant: its tenant, and for a session always that of the session; None for a client that was not let in.
        outcome: whether the action was done, or refused because a right or a valid token was missing.
        session_id: the session; None if it is about none, or none was made.
        node: the name of the node; None for a process that serves alone.
        source: the address of the client, as the gateway saw it; None if the client was none of a gateway.
        details: more facts, such as the original of a fork, the id of a tool call, or the reason of a refusal.
        number: its number in the store, which no other entry has; 0 before it is stored.
    """

    WHOLE: ClassVar[bool] = True
    at: datetime
    action: Action
    who: str
    tenant: str | None
    by: By | None = None
    outcome: Outcome = "done"
    session_id: str | None = None
    node: str | None = None
    source: str | None = None
    details: Mapping[str, str] = attrs.field(factory=dict)
    number: int = 0


@frozen
class AuditPage:
    """A part of the audit, oldest first.

    Attributes:
        entries: the entries.
        cursor: the place behind the last of them, from which another request goes on; without entries that of the
            request. None if there is none.
        damaged: entries that cannot be read, by their numbers.
    """

    entries: tuple[AuditEntry, ...]
    cursor: str | None = None
    damaged: tuple[DamagedRow, ...] = ()


def by_of(principal: Principal) -> By:
    """Return the kind of a principal."""
    return "principal" if principal.home is None else "operator"


def is_cursor(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that cannot be a cursor. Raises FieldValueError."""
    found = _CURSOR.fullmatch(value) if isinstance(value, str) else None
    if found is None or any(abs(int(each)) > LARGEST for each in found.groups()):
        raise FieldValueError(attribute.name, "must be the cursor of an earlier answer")


def place_of(cursor: str) -> tuple[int, int] | None:
    """Return the time, in microseconds since 1970, and the number of the entry behind which a cursor goes on."""
    found = _CURSOR.fullmatch(cursor)
    return None if found is None else (int(found[1]), int(found[2]))


def cursor_of(microseconds: int, number: int) -> str:
    """Return the cursor behind an entry of that time and number."""
    return f"{microseconds}.{number}"
