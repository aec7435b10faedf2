"""Completion tokens: what they say, who can make one, and when one is refused."""

from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.domain.strategies import text
from warren.base.fields import FieldValueError, text_problem
from warren.conversation.completion import LONGEST, MAX_TOKEN, CompletionKey, CompletionToken, TokenMaker
from warren.models.tools import ToolContext, ToolOutput

NOW: Final = datetime(2026, 11, 27, 12, 0, 0, 500_000, tzinfo=UTC)
KEY: Final = CompletionKey(b"s" * 32)
MAKER: Final = TokenMaker(KEY, "default", lambda: NOW)
TOKEN: Final = MAKER.make("s1", "c1", "s1:1:1:k", 60)
sendable: Final = text.filter(lambda each: not text_problem(each))


@given(sendable, text, text, st.floats(min_value=0.001, max_value=LONGEST))
def test_a_token_says_what_it_is_for(session_id: str, call_id: str, key: str, expires: float) -> None:
    """Its claims can be read without the key, and with the key they are found to be true."""
    token = MAKER.make(session_id, call_id, key, expires)
    claims = CompletionToken.read(token)
    assert (claims.tenant, claims.session_id, claims.call_id, claims.key) == ("default", session_id, call_id, key)
    assert timedelta(seconds=expires) <= claims.expires - NOW + timedelta(microseconds=1)
    assert claims.expires - NOW < timedelta(seconds=expires + 1)
    assert KEY.verified(token, "default") == claims


@given(st.data())
def test_a_token_with_one_changed_character_is_refused(data: st.DataObject) -> None:
    """Whatever character it is: of the claims, of the signature, or of its form."""
    at = data.draw(st.integers(0, len(TOKEN) - 1))
    other = data.draw(st.characters().filter(lambda each: each != TOKEN[at]))
    with pytest.raises(FieldValueError, match="token"):
        KEY.verified(TOKEN[:at] + other + TOKEN[at + 1 :])


def _with_claims(body: bytes) -> str:
    payload = urlsafe_b64encode(body).rstrip(b"=").decode()
    return f"wct_{payload}.{'A' * 43}"


@given(st.text(max_size=200))
@example("")
@example(_with_claims(b"[" * 2_900))
@example(_with_claims(b"{}"))
@example(_with_claims(b'["default","s1","c1","k",true'))
@example(_with_claims(rb'["default","\ud800","c1","k",1]'))
@example(_with_claims(b'["default","s1","c1","k",1' + b"0" * 2_900))
@example("wct_A.")
@example(TOKEN + "\n")
@example("wct_" + "A" * MAX_TOKEN)
def test_a_text_that_is_no_token_is_refused(given_text: str) -> None:
    """Without another error, and the refusal names the parameter."""
    with pytest.raises(FieldValueError, match="token is no completion token") as caught:
        CompletionToken.read(given_text)
    assert caught.value.refusal().path == "$.token"


def test_a_token_of_another_store_or_tenant_looks_forged() -> None:
    """The refusals are the same, so nobody learns of the calls of other tenants."""
    refusals = set[str]()
    for key, tenant in ((CompletionKey(b"t" * 32), "default"), (KEY, "other")):
        with pytest.raises(FieldValueError) as caught:
            key.verified(TOKEN, tenant)
        refusals.add(str(caught.value))
    assert refusals == {"token was not made here: it has another signature than the tokens of this tenant"}


def test_all_tokens_of_a_call_have_one_mark() -> None:
    """Whenever they expire; another call, key, session or tenant has another mark."""
    later = MAKER.make("s1", "c1", "s1:1:1:k", 3600)
    marks = {CompletionToken.read(each).mark for each in (TOKEN, later)}
    assert later != TOKEN
    assert len(marks) == 1
    others = {
        CompletionToken.read(each).mark
        for each in (
            MAKER.make("s2", "c1", "s1:1:1:k", 60),
            MAKER.make("s1", "c2", "s1:1:1:k", 60),
            MAKER.make("s1", "c1", "s1:1:2:k", 60),
            TokenMaker(KEY, "other", lambda: NOW).make("s1", "c1", "s1:1:1:k", 60),
        )
    }
    assert len(others | marks) == 5


@pytest.mark.parametrize("expires", [0, -1, LONGEST + 1, float("inf"), float("nan")])
def test_a_token_has_to_expire(expires: float) -> None:
    """Within a year, and not at once."""
    with pytest.raises(ValueError, match="expires has to be above 0"):
        MAKER.make("s1", "c1", "k", expires)


def test_a_token_fits_into_a_request() -> None:
    """A model that gives a call an endless id gets an error of the tool, and no token that nobody could use."""
    with pytest.raises(ValueError, match="4096 is the most"):
        MAKER.make("s1", "c" * MAX_TOKEN, "k", 60)


def test_the_key_is_not_shown() -> None:
    """Neither in a representation, nor in that of a call or a result."""
    call = ToolContext("s1", 1, 1, "c1", "ask", {}, None, MAKER)
    token = call.token(expires=60)
    shown = repr((KEY, MAKER, call, ToolOutput.later(token)))
    assert token not in shown
    assert "CompletionKey()" in shown
    assert call == ToolContext("s1", 1, 1, "c1", "ask", {})
    assert CompletionToken.read(token).key == call.key


def test_there_is_no_token_without_the_key() -> None:
    """A call whose runtime could not read its store says so."""
    with pytest.raises(RuntimeError, match="the store, which has the key, could not be read"):
        ToolContext("s1", 1, 1, "c1", "ask", {}).token(expires=60)
