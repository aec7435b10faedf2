"""The values of a message of a server are counted before they are checked."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warren.actors.tools.mcp.values import MAX_VALUES, are_too_many, has_too_many, refusal

PUNCTUATION = '[{,"\\'


@given(st.integers(0, 40_000), st.text(PUNCTUATION, max_size=20))
def test_signs_in_texts_are_no_values(length: int, text: str) -> None:
    """A message of one long text has few values, whatever the text is and wherever its parts begin."""
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "result": ["x" * length + text * 10_000]}).encode()
    assert not has_too_many(message)


def test_the_bound() -> None:
    """It is the same for bytes and for data, up to the members around them, however the values nest."""
    items: list[Any] = [{"type": "text", "text": 'a, [ \\"'}, ["a", ["b"]], {"a": {}}]
    for item in items:
        few: Any = [item] * (MAX_VALUES // 5)
        many: Any = [item] * MAX_VALUES
        assert not has_too_many(json.dumps(few).encode())
        assert not are_too_many(few)
        assert has_too_many(json.dumps(many).encode())
        assert are_too_many(many)


def test_who_gets_an_error_for_it() -> None:
    """The call that such an answer is for; nobody for a notification, or a request of the server."""
    answer = refusal(b'{"jsonrpc": "2.0", "id": 7, "result": {"content": [[[], []]]}}')
    assert answer is not None
    assert answer.id == 7
    assert refusal(b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}') is None
    assert refusal(b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}') is None
    assert refusal(b"[[[") is None
