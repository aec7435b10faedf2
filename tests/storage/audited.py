"""Entries of the audit, and a session that is created with one."""

from datetime import timedelta
from typing import Any

import attrs

from tests.storage.samples import NOW, turn
from warren.reports.audit import Action, AuditEntry
from warren.storage.operations import Commit


def said(action: Action, session_id: str | None = None, *, after: int = 0, **more: Any) -> AuditEntry:
    """Return an entry of the default tenant, so many seconds after the first ones."""
    given = {"who": "ann", "tenant": "default", "by": "principal", "session_id": session_id, **more}
    return AuditEntry(at=NOW + timedelta(seconds=after), action=action, **given)


def created(session_id: str) -> Commit:
    """Return the first commit of a session."""
    return attrs.evolve(turn(session_id), audit=said("create", session_id))
