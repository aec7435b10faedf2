"""Structured output in Meerkat's words."""

import pytest

from warren.base.fields import FieldValueError
from warren.conversation import codec
from warren.conversation.events import ExtractionCompleted, ExtractionFailed, RunFailed
from warren.conversation.options import RETRIES
from warren.transport.rpc.contracts.meerkat.events import payload_of
from warren.transport.rpc.contracts.meerkat.params import CreateParams, StartParams

SCHEMA = {"type": "object", "properties": {"schema": {"type": "string"}}}
WRAPPED = {"schema": SCHEMA, "name": "person", "strict": True, "compat": "lossy"}


@pytest.mark.parametrize("given", [SCHEMA, WRAPPED])
def test_a_schema_bare_or_wrapped(given: dict[str, object]) -> None:
    """Both forms that its clients send are the same schema; retries that are left out are ours."""
    made = codec.from_data(CreateParams, {"prompt": "x", "output_schema": given}).request()
    assert (made.output_schema, made.structured_output_retries) == (SCHEMA, RETRIES)
    asked = {"session_id": "s", "prompt": "x", "output_schema": given, "structured_output_retries": 0}
    turn = codec.from_data(StartParams, asked).request()
    assert (turn.output_schema, turn.structured_output_retries) == (SCHEMA, 0)
    plain = codec.from_data(StartParams, {"session_id": "s", "prompt": "x"}).request()
    assert (plain.output_schema, plain.structured_output_retries) == (None, None)


def test_bad_retries() -> None:
    """A number that is out of range is refused by its name."""
    asked = codec.from_data(CreateParams, {"prompt": "x", "structured_output_retries": 11})
    with pytest.raises(FieldValueError) as caught:
        asked.request()
    assert caught.value.refusal().path == "$.structured_output_retries"


def test_events() -> None:
    """An event that its clients would take for malformed is kept back; how the turn failed is said in their words."""
    assert payload_of(ExtractionCompleted(1)) is None
    assert payload_of(ExtractionFailed("no", 3)) is None
    failed = payload_of(RunFailed("s", "no", "structured_output"))
    assert failed is not None
    assert failed["terminal_cause_kind"] == "structured_output_validation_failed"
