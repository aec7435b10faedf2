"""Answers of a type: what the program gets, what its validators say to the model, and what is left without the type."""

import json
from pathlib import Path
from typing import Any, Final

import attrs
import pydantic
import pytest

from tests.support.models import Formed
from tests.support.runtime import new_session, open_runtime
from warren.agents.agent import Agent
from warren.base.errors import AgentError, InvalidParamsError
from warren.base.fields import FieldValueError
from warren.conversation.messages import UserMessage
from warren.conversation.options import SessionOptions
from warren.settings.config import Config
from warren.structured.output import CORRECTION

pytestmark = pytest.mark.virtual_time


def _is_paid(_instance: object, _attribute: object, cents: int) -> None:
    if cents < 1:
        raise ValueError(f"nobody is paid {cents} cents")


@attrs.frozen
class Refund:
    order: str
    cents: int = attrs.field(validator=_is_paid)


class Note(pydantic.BaseModel):
    text: str

    @pydantic.field_validator("text")
    @classmethod
    def _is_short(cls, value: str) -> str:
        if len(value) > 9:
            raise ValueError("a note is short")
        return value


DESK: Final = Agent("desk", "Settle it.", output_type=Refund)
GOOD: Final = {"order": "17", "cents": 5}
BAD: Final = {"order": "17", "cents": 0}


def formed(*answers: object) -> Formed:
    """Return a model that gives these data, one after the other."""
    return Formed(answers=[json.dumps(each) for each in answers])


async def test_an_agent_with_a_type(store: Path | None) -> None:
    """Each result of a session of it is an instance, from a turn and from a stream, and the data is beside it."""
    model = formed(GOOD, GOOD, GOOD)
    async with open_runtime(model, store=store, config=Config(agents=(DESK,))) as service:
        session = service.session(DESK)
        result = await session.turn("Order 17 broke.")
        assert (result.output, result.structured_output) == (Refund("17", 5), GOOD)
        async with session.stream("again") as events:
            assert (await events.result()).output == Refund("17", 5)
        fork = await session.fork()
        assert (await fork.turn("again")).output == Refund("17", 5)


@pytest.mark.parametrize(
    ("wanted", "bad", "good", "words"),
    [
        (Refund, BAD, GOOD, "nobody is paid 0 cents"),
        (list[Refund], [GOOD, BAD], [GOOD], "nobody is paid 0 cents"),
        (Note, {"text": "much too long"}, {"text": "ok"}, "$.text: Value error, a note is short"),
    ],
)
async def test_what_a_validator_says_goes_to_the_model(wanted: Any, bad: Any, good: Any, words: str) -> None:
    """The data fits the schema, and the class refuses it: the model is told, and answers again."""
    model = formed(bad, good)
    async with open_runtime(model) as service:
        result = await service.create_session("hi", output_type=wanted)
        assert result.structured_output == good
        assert result.output == ([Refund("17", 5)] if isinstance(good, list) else wanted(**good))
    told = model.asked[-1].messages[-1]
    assert isinstance(told, UserMessage)
    assert told.content.startswith(CORRECTION)
    assert words in told.content


async def test_an_agents_validator_goes_to_the_model(tmp_path: Path) -> None:
    """Also of an agent, in a turn that a caller begins who knows nothing of the type."""
    model = formed(BAD, GOOD, BAD, BAD, BAD)
    async with open_runtime(model, store=tmp_path, config=Config(agents=(DESK,))) as service:
        result = await service.create_session("hi", agent="desk")
        assert result.structured_output == GOOD
        assert result.output == GOOD
        with pytest.raises(AgentError) as caught:
            await service.start_turn(result.session_id, "again")
        assert (caught.value.cause, caught.value.details["errors"]) == (
            "structured_output",
            ["nobody is paid 0 cents"],
        )


async def test_a_process_without_the_type(tmp_path: Path) -> None:
    """The schema alone is checked there; a handle with the type makes the instance, or says what is wrong with it."""
    async with open_runtime(formed(GOOD), store=tmp_path, config=Config(agents=(DESK,))) as service:
        session_id = (await service.session(DESK).turn("hi")).session_id
    model = formed(BAD, GOOD)
    async with open_runtime(model, store=tmp_path) as service:
        assert (await service.start_turn(session_id, "again")).structured_output == BAD
        # The handle of another program; this one has not given the agent to its runtime.
        session = service.session(id=session_id)
        assert (await session.turn("again")).output == GOOD
    async with open_runtime(formed(GOOD), store=tmp_path) as service:
        assert (await service.session(DESK, id=session_id).turn("again")).output == Refund("17", 5)


async def test_a_prompt_that_waits_has_the_schema_alone(tmp_path: Path) -> None:
    """Its turn may run in another process, so the type is the caller's: the error says that the turn has run."""
    async with open_runtime(formed(BAD, GOOD), store=tmp_path) as service:
        session_id = await new_session(service)
        with pytest.raises(AgentError, match="the answer does not fit Refund: nobody is paid 0 cents") as caught:
            await service.start_turn(session_id, "hi", mode="queue", output_type=Refund)
        assert caught.value.cause == "structured_output"
        result = await service.start_turn(session_id, "hi", mode="queue", output_type=Refund)
        assert result.output == Refund("17", 5)


async def test_the_type_of_one_turn() -> None:
    """It is that turn's alone, and a turn without one has its text as the output."""
    async with open_runtime(Formed("Done.", [json.dumps(GOOD)])) as service:
        session = service.session(Agent("plain"))
        assert (await session.turn("hi")).output == "Done."
        assert (await session.turn("hi", output_type=Refund)).output == Refund("17", 5)
        assert (await session.turn("hi")).output == "Done."


async def test_bad_types_are_refused_by_name() -> None:
    """Before anything exists: by the agent, and by the call."""
    with pytest.raises(FieldValueError, match=r"output_type set\[object\] cannot be described as JSON"):
        Agent("desk", output_type=set[object])
    with pytest.raises(FieldValueError, match=r"options\.output_schema does not go with an `output_type`"):
        Agent("desk", output_type=Refund, options=SessionOptions(output_schema={}))
    async with open_runtime(Formed(), config=Config(agents=(DESK,))) as service:
        for given, words in (
            ({"output_type": set[object]}, "output_type: set[object] cannot be described"),
            ({"output_type": Refund, "output_schema": {}}, "output_type: does not go with `output_schema`"),
            ({"output_type": Refund, "agent": "desk"}, "output_type: does not go with `agent`"),
        ):
            with pytest.raises(InvalidParamsError) as caught:
                await service.create_session("hi", **given)
            assert words in caught.value.message
        assert (await service.list()).sessions == ()


def test_the_version_has_the_schema() -> None:
    """An agent whose type has another schema is another version; the class itself is no part of it."""

    @attrs.frozen
    class Other:
        order: str
        cents: int

    assert DESK.version != Agent("desk", "Settle it.").version
    assert DESK.version == DESK.with_(output_type=Other).version
