"""The auditor, while the store takes nothing: entries wait, up to a number, and none is lost without a word."""

import json
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest
import trio

from tests.support.faulty_store import Faults
from tests.support.runtime import open_runtime
from warren.actors.resources import audit
from warren.base.principals import Principal
from warren.reports.audit import AuditEntry

pytestmark = pytest.mark.virtual_time

ROOT = Principal("ops", "root", frozenset({"session:admin", "tenant:admin"}))


async def test_a_store_that_takes_nothing_loses_no_refusal_unheard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Health says why, the metrics how many; what is beyond the bound is in the log; the rest is stored afterwards."""
    monkeypatch.setattr(audit, "MOST_WAITING", 20)
    faults = Faults()
    async with open_runtime(store=tmp_path, faults=faults) as service:
        faults.refuse = apsw.FullError("the disk is full")
        for number in range(50):
            refused = AuditEntry(at=datetime.now(UTC), action="login", who=f"w{number}", tenant=None, outcome="refused")
            service.note(refused)
        await trio.sleep(20)
        health, metrics = service.health().store, service.metrics()
        assert health is not None
        assert (health.status, "disk is full" in str(health.last_error)) == ("degraded", True)
        assert [metrics.total(f"warren_audit_{name}") for name in ("waiting", "lost_total")] == [20, 30]
        lost = [each.getMessage().partition(": ")[2] for each in caplog.records if each.levelname == "ERROR"]
        assert [json.loads(each)["who"] for each in lost if each.startswith("{")] == [f"w{n}" for n in range(20, 50)]
        assert caplog.text.count("entries of the audit wait for the store") == 1
        faults.refuse = None
        await trio.sleep(2)
        entries = (await service.as_(ROOT).audit(all_tenants=True, action="login")).entries
        assert [each.who for each in entries] == [f"w{number}" for number in range(20)]
        assert service.metrics().total("warren_audit_waiting") == 0
