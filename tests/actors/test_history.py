"""The load of the last hour: a sample every ten seconds, with the differences of the counts."""

from pathlib import Path

import pytest
import trio

from tests.support.models import says
from tests.support.runtime import new_session, open_runtime
from warren.actors.history import KEPT
from warren.errors import PermissionDeniedError, ProviderError
from warren.principals import Principal

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
        with pytest.raises(PermissionDeniedError):
            service.as_(Principal(scopes=frozenset({"session:read"}))).load()


async def test_an_hour_is_kept() -> None:
    """The oldest samples give way."""
    async with open_runtime() as service:
        await trio.sleep(10 * KEPT + 105)
        assert len(service.load().samples) == KEPT
