"""The values that options stand in: they check themselves, and calls and levels are made from them."""

import inspect
from functools import partial
from typing import Any

import attrs
import pytest

from warren.base.fields import FieldValueError
from warren.calls.facade import SessionService
from warren.conversation.options import (
    Durability,
    ModelOptions,
    SessionOptions,
    SessionRequest,
    TurnOptions,
    TurnRequest,
    given,
    part,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("temperature", bad) for bad in (-0.01, 2.01, NAN, "1", True)],
        *[("top_p", bad) for bad in (0, -1, 1.01, NAN, "1", True)],
        *[("max_tokens", bad) for bad in (0, 1.5, 2**63, True)],
        *[("model", bad) for bad in ("", " ", 1, "\ud800")],
        ("budget", {"max_steps": 1}),
        ("overrides", "shell"),
        ("output_schema", "{}"),
        ("structured_output_retries", 11),
        *[("durability", bad) for bad in ("", "steps", 1, True)],
    ],
)
def test_an_option_of_a_turn_checks_itself(name: str, bad: object) -> None:
    """A bad value is refused by the name of its field, wherever the option stands."""
    given_bad: dict[str, Any] = {name: bad}
    for make in (TurnOptions, SessionOptions, partial(SessionRequest, None)):
        with pytest.raises(FieldValueError) as caught:
            make(**given_bad)
        assert caught.value.field == name


@pytest.mark.parametrize("good", [{"temperature": 0}, {"temperature": 2.0}, {"top_p": 1}, {"top_p": 0.001}, {}])
def test_bounds_belong_to_the_range(good: dict[str, Any]) -> None:
    """0 and 2 are temperatures, 1 is a share; 0 is none."""
    assert given(ModelOptions, ModelOptions(**good)) == good


def test_the_nearest_level_counts() -> None:
    """An option of a turn goes before that of the session, and this before the runtime's; 0 is said, too."""
    turn, session = TurnOptions(temperature=0), SessionOptions(temperature=1, top_p=0.5, model="m")
    runtime = ModelOptions(top_p=1, max_tokens=7)
    assert turn.over(session, runtime) == ModelOptions(temperature=0, top_p=0.5, max_tokens=7)


def test_the_keywords_of_the_service_are_the_fields() -> None:
    """Whoever calls the service can say all that a request can hold, by the same names and with the same defaults."""
    for method, request in ((SessionService.create_session, SessionRequest), (SessionService.start_turn, TurnRequest)):
        parameters = inspect.signature(method).parameters
        for field in attrs.fields(request):
            assert field.name in parameters
            default = inspect.Parameter.empty if field.default is attrs.NOTHING else field.default
            assert parameters[field.name].default == default


def test_a_part_has_what_its_class_has() -> None:
    """Of a request the options remain, and changes win."""
    request = SessionRequest("hi", temperature=1, title="t", tools=("a",))
    assert part(SessionOptions, request, tools=None) == SessionOptions(temperature=1)


@pytest.mark.parametrize(
    ("turn", "session", "runtime", "keeps"),
    [
        (None, None, "step", True),
        (None, None, "turn", False),
        (None, "turn", "step", False),
        (None, "step", "turn", True),
        ("step", "turn", "turn", True),
        ("turn", "step", "step", False),
    ],
)
def test_the_nearest_durability_counts(
    turn: Durability | None, session: Durability | None, runtime: Durability, *, keeps: bool
) -> None:
    """The durability of a turn wins over the session's, and the session's over the runtime's."""
    of_turn, of_session = TurnOptions(durability=turn), SessionOptions(durability=session)
    assert of_turn.keeps_steps(of_session, runtime) is keeps
