"""The auditor by itself: an entry is stored once, also if the runtime ends while the store takes it."""

from typing import Any, ClassVar

import attrs
import pytest
import trio
import trio.testing

from warren.actors.resources.audit import auditing
from warren.base.principals import LOCAL
from warren.reports.audit import AuditEntry

pytestmark = pytest.mark.virtual_time


@attrs.define
class SlowStorage:
    """A storage that takes an operation at once, and answers later; a caller that leaves changes nothing."""

    node: ClassVar[None] = None
    entries: list[AuditEntry] = attrs.field(factory=list)

    async def write(self, operation: Any) -> None:
        """Take the entries."""
        self.entries += operation.entries
        await trio.sleep(1)


async def test_an_entry_that_is_on_its_way_at_the_end_is_stored_once() -> None:
    """The end waits for the answer of the store in place of storing the entry again."""
    storage: Any = SlowStorage()
    async with auditing(storage) as auditor:
        auditor.note(auditor.entry(LOCAL, "interrupt", "s1"))
        await trio.testing.wait_all_tasks_blocked()
    assert [entry.session_id for entry in storage.entries] == ["s1"]
