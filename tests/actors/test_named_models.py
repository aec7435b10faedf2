"""Which provider answers when a model is named: the runtime's own one holds until somebody names another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime
from warren.actors.calls.service import Service
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time


@attrs.define
class Named:
    """A provider that answers with its own name and the name of the model that it was asked for."""

    name: str

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Say who was asked for which model."""
        await trio.lowlevel.checkpoint()
        return reply(f"{self.name} {request.model}")


@asynccontextmanager
async def two_providers() -> AsyncIterator[Service]:
    """Run a runtime whose provider is `first`, and that knows a `second` one."""
    models = {name: FunctionModel(Named(name).answer) for name in ("first", "second")}
    async with open_runtime(config=Config(model="default", provider="first"), models=models) as service:
        yield service


async def test_the_runtimes_provider_answers_for_a_model_that_a_session_names() -> None:
    """A session that names a model and no provider is answered by the runtime's provider."""
    async with two_providers() as service:
        assert (await service.create_session("hello", model="my-finetune")).text == "first my-finetune"
        assert (await service.create_session("hello", model="claude-x")).text == "first claude-x"


async def test_the_runtimes_provider_answers_for_a_model_that_a_turn_names() -> None:
    """So is a turn that names a model."""
    async with two_providers() as service:
        session_id = await new_session(service)
        assert (await service.start_turn(session_id, "hello", model="my-finetune")).text == "first my-finetune"


async def test_a_provider_that_is_named_wins() -> None:
    """A session's or a turn's own provider answers in place of the runtime's."""
    async with two_providers() as service:
        created = await service.create_session("hello", model="any", provider="second")
        assert created.text == "second any"
        assert (await service.start_turn(created.session_id, "hello")).text == "second any"
        session_id = await new_session(service)
        turn = await service.start_turn(session_id, "hello", model="any", provider="second")
        assert turn.text == "second any"
