"""The load of the last hour: a sample every ten seconds, with the differences of the counts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio

from tests.support.models import says
from tests.support.runtime import new_session, open_runtime
from warren.actors.calls.history import BOUNDS, INTERVAL, KEPT, added
from warren.base.errors import PermissionDeniedError, ProviderError
from warren.base.principals import Principal
from warren.conversation import codec
from warren.reports.metrics import History, LoadSample

pytestmark = pytest.mark.virtual_time


async def test_a_sample_has_what_its_seconds_brought(tmp_path: Path) -> None:
    """Turns, their events and failures are in the sample of their time alone; what nobody measured is None."""
    model = says(["one"], ProviderError("no", cause="unauthorized", retryable=False), ["two"])
    async with open_runtime(model, store=tmp_path) as service:
        session = await new_session(service)
        first = await service.start_turn(session, "1")
        with pytest.raises(ProviderError):
            await service.start_turn(session, "2")
        await trio.sleep(25)
        await service.start_turn(session, "3")
        await trio.sleep(10)
        found = service.load()
        one, two, three = found.samples
        assert (one.turns, two.turns, three.turns) == (2, 0, 1)
        assert one.events > three.events == (first.last_seq or 0)
        assert (dict(one.errors), dict(two.errors)) == ({"provider_error": 1}, {})
        assert (one.live, one.running, one.limit) == (1, 0, two.limit)
        assert one.commit_p50_ms is not None
        assert (two.model_p50_ms, two.commit_p99_ms) == (None, None)
        assert found.seconds == 10
        assert found.samples == tuple(attrs.evolve(each, buckets={}) for each in service.load_for_nodes().samples)
        with pytest.raises(PermissionDeniedError):
            service.as_(Principal(scopes=frozenset({"session:read"}))).load()


async def test_an_hour_is_kept() -> None:
    """The oldest samples give way."""
    async with open_runtime() as service:
        await trio.sleep(10 * KEPT + 105)
        assert len(service.load().samples) == KEPT


def sample(at: float, turns: int, *, commit: int = 0, **errors: int) -> LoadSample:
    """Return a sample that ends at a second, with four commits in one of the buckets."""
    counts = tuple(4 * (each == commit) for each in range(len(BOUNDS["commit"]) + 1))
    end = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=at)
    counted = (turns, 2 * turns, 1, 8, 3, 0)
    return LoadSample(end, *counted, None, None, None, None, None, None, errors, {"commit": counts})


def test_the_loads_of_processes_are_added_up() -> None:
    """Each sample has one of every process that lived then; durations are those of all commits, not a mean of medians.

    A process that stopped two samples ago is missing in the newest ones; one that has no sample yet adds nothing.
    """
    one = History(INTERVAL, (sample(4, 1), sample(14, 2, cancelled=1), sample(24, 4)))
    two = History(INTERVAL, (sample(9.5, 10, commit=5, cancelled=2), sample(19.5, 20, commit=5)))
    gone = History(INTERVAL, (sample(-8, 200), sample(2, 100)))
    told = codec.from_server(History, codec.parse(codec.encode(two)))  # as the nodes tell each other
    found = added([one, told, gone, History(INTERVAL)])
    assert (found.processes, found.seconds) == (4, INTERVAL)
    assert [each.at.second for each in found.samples] == [54, 4, 14, 24]
    assert [each.turns for each in found.samples] == [200, 101, 12, 24]
    assert [(each.events, each.running, each.limit) for each in found.samples[2:]] == [(24, 2, 16), (48, 2, 16)]
    assert dict(found.samples[2].errors) == {"cancelled": 3}
    alone, newest = found.samples[0], found.samples[3]
    assert alone.commit_p99_ms == pytest.approx(0.495)
    assert newest.commit_p50_ms == pytest.approx(0.5)
    assert newest.commit_p99_ms == pytest.approx(24.7)
    assert (newest.model_p50_ms, newest.buckets) == (None, {})
