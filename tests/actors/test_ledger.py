"""The ledger has all that sessions have used, once, whatever becomes of their turns and of the store."""

from decimal import Decimal
from pathlib import Path

import apsw
import attrs
import pytest
import trio

from tests.support.compacting import Model
from tests.support.faulty_store import Faults
from tests.support.models import Emit, reply
from tests.support.runtime import new_session, open_runtime
from warren.base.errors import AgentError, ProviderError, StoreError
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation.usage import Usage
from warren.models.catalog import ModelEntry
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.reports.ledger import UsageSums
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time
PRICES = ModelEntry(
    input=Decimal("3.1"), output=Decimal("15.7"), cache_read=Decimal("0.3"), cache_write_5m=Decimal("3.9")
)
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def of_sessions(service: SessionService) -> UsageSums:
    """Return what all sessions that are stored have used by their own records."""
    views = [await service.read(row.session_id) for row in (await service.list(include_archived=True)).sessions]
    usage = sum((view.billing.usage for view in views), Usage())
    return UsageSums(
        turns=(await service.usage(by="session")).total.turns,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_creation_tokens=usage.cache_creation_tokens,
        cost=usage.known_cost,
        unpriced_tokens=0,
    )


@attrs.define(eq=False)
class Moody:
    """A model that fails in the middle of its first answer, is asked for data in another, and hangs in a third."""

    calls: int = 0

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Answer the call."""
        await trio.lowlevel.checkpoint()
        self.calls += 1
        emit(TextPiece("some words"))
        if request.answer_schema is not None:
            return reply('{"name": "Ann"}', usage=Usage(7, 3))
        if self.calls == 1:
            raise ProviderError("overloaded", cause="overloaded", retryable=True)
        if "hang" in str(request.messages[-1]):
            await trio.sleep_forever()
        if "fail" in str(request.messages[-1]):
            raise ProviderError("no", cause="bad_request")
        return reply("word " * 200, usage=Usage(100, 20, 5, 30))


async def test_every_call_counts_once(tmp_path: Path) -> None:
    """Of failed and interrupted turns, compactions and answers as data; forks add nothing, deletes take nothing."""
    model = Model(Moody().answer)
    retry = RetryPolicy(initial_delay=0.01)
    compaction = CompactionConfig(auto_compact_threshold=300, recent_turn_budget=1, min_turns_between_compactions=0)
    config = Config(models={"test": PRICES}, retry=retry, compaction=compaction)
    async with open_runtime(model, store=tmp_path, config=config) as service:
        session_id = await new_session(service)
        for prompt in ("one", "two", "three"):
            await service.start_turn(session_id, prompt)
        await service.start_turn(session_id, "as data", output_schema=PERSON)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "fail")
        with trio.move_on_after(1):
            await service.start_turn(session_id, "hang")
        await service.interrupt(session_id)
        assert model.compactions
        used = await of_sessions(service)
        report = await service.usage(by="model")
        assert [row.key for row in report.rows] == ["test"]
        assert report.total == used
        assert used.cost
        fork = await service.fork(session_id)
        assert (await service.usage(by="day")).total == used
        assert (await service.usage(by="session", limit=1)).rows[0].key == session_id
        await service.delete(session_id)
        await service.delete(fork.state.session_id)
    async with open_runtime(store=tmp_path) as service:
        assert (await service.usage()).total == used


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_a_turn_that_the_store_refused_counts_also_if_its_session_ends(tmp_path: Path, how: str) -> None:
    """Its tokens are spent, whatever becomes of the session."""
    faults = Faults()
    async with open_runtime(Model(), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "one")
        before = (await service.usage()).total
        faults.refuse, faults.refusals = apsw.FullError("full"), 1
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "two")
        await getattr(service, how)(session_id)
        after = (await service.usage()).total
        assert (after.turns, after.input_tokens) == (before.turns, 2 * before.input_tokens)


async def test_a_turn_that_the_store_refused_counts_with_the_next_one(tmp_path: Path) -> None:
    """Its tokens were used; it is no turn of the session, and a commit that was lost on its way counts once."""
    faults, model = Faults(), Model()
    async with open_runtime(model, store=tmp_path, faults=faults, config=Config(models={"test": PRICES})) as service:
        session_id = await new_session(service)
        faults.refuse, faults.refusals = apsw.FullError("the disk is full"), 1
        with pytest.raises((StoreError, AgentError)):
            await service.start_turn(session_id, "one")
        assert (await service.usage()).count == 0
        await service.start_turn(session_id, "two")
        faults.crash_after = 1
        await service.start_turn(session_id, "three")
        used = await of_sessions(service)
        assert (await service.usage()).total == used
        assert (used.turns, len(model.asked)) == (2, 3)
        assert used.input_tokens == 3 * 20
