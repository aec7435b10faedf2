"""The prompts of triggers: what becomes of the places in them."""

import attrs
import pytest

from warren.base.fields import FieldValueError
from warren.calls.triggers import TriggerRequest
from warren.conversation.triggers import MAX_PROMPT, BadBodyError, prompt_of

BODY = b'{"a": {"b": ["x", {"c": 1}], "t": "\\u00fc", "n": null, "f": false}, "a-b": "dash", "": "none"}'


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{body}", BODY.decode()),
        ("{body.a.t} and {body.a.t}", "\u00fc and \u00fc"),
        ("{body.a.b}", '["x",{"c":1}]'),
        ("{body.a.b.0}{body.a.b.1.c}{body.a.f}", "x1false"),
        ("{body.a-b}", "dash"),
        ("[{body.none}{body.a.n}{body.a.b.9}{body.a.b.x}{body.a.t.0}{body.a.b.99999999999999999999}]", "[]"),
        ("{event}: {{body}} {{event}} {{other.name}}", "push: {body} {event} {other.name}"),
        ('{"a": {"b": {}}} { body } {} {1}', '{"a": {"b": {}}} { body } {} {1}'),
    ],
)
def test_places_are_filled(template: str, prompt: str) -> None:
    """A text is put in as it is, another value as JSON, and what is missing is empty; other braces are text."""
    TriggerRequest(template)
    assert prompt_of(template, BODY, "push") == prompt


def test_any_body_is_taken() -> None:
    """One that is no JSON has no members, and no UTF-8 is replaced; places in a body are no places."""
    assert prompt_of("[{body.a}]{event}", b"no json") == "[]"
    assert prompt_of("[{body.a}]", b"[" * 100_000) == "[]"
    assert prompt_of("[{body.0}]", b'["{event}"]', "push") == "[{event}]"
    assert prompt_of("{body}", b"a\xff") == "a\ufffd"
    assert prompt_of("[{body.a}]", b'{"a": "\\ud800"}') == "[]"


def test_a_prompt_has_to_have_something_in_it() -> None:
    """An empty one, and one that is too long, are refused before the text is made."""
    for template in ("{body}", " {body.a}\n"):
        with pytest.raises(BadBodyError, match="empty"):
            prompt_of(template, b"")
    with pytest.raises(BadBodyError, match="characters"):
        prompt_of("{body}" * 100_000, b"x" * (MAX_PROMPT // 4))
    assert len(prompt_of("{body}", b"x" * MAX_PROMPT)) == MAX_PROMPT


@pytest.mark.parametrize("place", ["{other}", "{bodyx}", "{body.}", "{body..a}", "{body.a.}", "{events}", "{event.a}"])
def test_unknown_places_are_refused(place: str) -> None:
    """When the trigger is made, by name."""
    with pytest.raises(FieldValueError) as refused:
        TriggerRequest(f"look at {place}")
    assert refused.value.field == "prompt"
    assert place in str(refused.value)


def test_no_secret_is_shown() -> None:
    """Neither in the text of a request nor in an error about it."""
    request = TriggerRequest("go", scheme="github", secret="swordfish")  # noqa: S106 - it is none
    assert "swordfish" not in repr(request)
    with pytest.raises(FieldValueError) as refused:
        attrs.evolve(request, scheme="standard")
    assert refused.value.field == "secret"
    assert "swordfish" not in str(refused.value)
