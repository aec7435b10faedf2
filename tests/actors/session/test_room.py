"""A store that takes no turn: no model is asked for an answer again before the store has room for it."""

from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio

from tests.actors.session.inboxes import said
from tests.faults import faulty_disk
from tests.support.faulty_store import Faults
from tests.support.models import FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, storage_of
from warren.actors.calls.service import Service
from warren.base.errors import StoreError, WarrenError
from warren.conversation.peers import Peer
from warren.models.model import ModelReply, ModelRequest
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time
LONG = "long " * 40_000
FULL = apsw.FullError("the disk is full")


@attrs.define
class Counting:
    """A model with long answers that counts its calls."""

    calls: int = 0

    async def answer(self, _request: ModelRequest, _emit: Any) -> ModelReply:
        self.calls += 1
        await trio.sleep(0.1)
        return reply(LONG)

    def model(self) -> FunctionModel:
        """Return the model."""
        return FunctionModel(self.answer)


async def refusal(service: Service, session_id: str, **options: Any) -> StoreError:
    """Send a prompt that the store cannot take; return the error."""
    with pytest.raises(StoreError) as refused:
        await service.start_turn(session_id, "x", **options)
    return refused.value


@pytest.mark.parametrize("options", [{}, {"mode": "queue", "idempotency_key": "k"}], ids=["busy", "keyed"])
async def test_retries_on_a_full_disk_ask_no_model(tmp_path: Path, options: dict[str, Any]) -> None:
    """The small writes of a retry still fit and its turn would not: one call of the model, and one more with room."""
    counting = Counting()
    with faulty_disk() as disk:
        async with open_runtime(counting.model(), store=tmp_path) as service:
            session_id = await new_session(service)
            disk.room = 100_000
            for _ in range(20):
                error = await refusal(service, session_id, **options)
                assert (error.cause, error.retryable) == ("disk_full", True)
                await trio.sleep(0.4)
            assert counting.calls == 1
            assert (await service.history(session_id)).total == 0
            disk.heal()
            assert (await service.start_turn(session_id, "x", **options)).text == LONG
            assert counting.calls == 2
            assert await said(service, session_id) == ["x"]


@pytest.mark.parametrize("cause", ["disk_full", "io_error", "read_only"])
async def test_no_session_asks_its_model_while_the_store_takes_no_turn(tmp_path: Path, cause: str) -> None:
    """One has found out; the turns of the others are refused before their models are asked."""
    errors = {"disk_full": FULL, "io_error": apsw.IOError("broken"), "read_only": apsw.ReadOnlyError("read-only")}
    counting, faults = Counting(), Faults()
    async with open_runtime(counting.model(), store=tmp_path, faults=faults) as service:
        ids = [await new_session(service) for _ in range(10)]
        faults.refuse = errors[cause]
        for session_id in ids:
            assert (await refusal(service, session_id)).cause == cause
        assert counting.calls == 1
        faults.refuse = None
        for session_id in ids:
            await service.start_turn(session_id, "x")
        assert counting.calls == 11


@pytest.mark.parametrize("of_a_peer", [False, True])
async def test_inputs_that_run_by_themselves_wait_for_room(tmp_path: Path, of_a_peer: bool) -> None:  # noqa: FBT001
    """Each is tried again and again without a call of the model, and runs soon when there is room."""
    counting = Counting()
    with faulty_disk() as disk:
        async with open_runtime(counting.model(), store=tmp_path) as service, trio.open_nursery() as nursery:
            session_id = await new_session(service, peer=Peer("ann", trusts=("bob",), keep_alive=True))
            sender = await new_session(service, peer=Peer("bob", trusts=("ann",)))
            disk.room = 150_000

            async def send() -> None:
                try:
                    await service.start_turn(session_id, "x", mode="queue")
                except WarrenError as exc:
                    assert not exc.retryable  # noqa: PT017 - the prompt runs by itself

            if of_a_peer:
                await service.send_message(sender, "ann", "x")
            else:
                nursery.start_soon(send)
            await trio.sleep(3600)
            assert counting.calls == 1
            disk.heal()
            await trio.sleep(120)
            assert counting.calls == 2
            assert len(await service.inputs(session_id)) == 0


async def test_a_store_that_is_well_is_not_asked(tmp_path: Path) -> None:
    """A turn costs one write, also after the store has taken a turn that it had refused before."""
    counting, faults = Counting(), Faults()
    async with open_runtime(counting.model(), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.refuse, faults.refuse_kinds, faults.refusals = FULL, (Commit,), 1
        await refusal(service, session_id)
        await service.start_turn(session_id, "x")
        assert storage_of(service).fault is None
        faults.groups.clear()
        await service.start_turn(session_id, "y")
        assert faults.groups == [1]
