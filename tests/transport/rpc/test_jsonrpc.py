"""JSON-RPC messages, read and written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.envelopes import delta
from warren.base.errors import AgentError, SessionBusyError
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.jsonrpc import Malformed, Notification, Request, Response

CALL = {"jsonrpc": "2.0", "id": 1, "method": "health"}


@pytest.mark.parametrize("request_id", ["a", "", 0, -1, 1.5, 2**53, 10**30])
def test_a_request_keeps_its_id(request_id: Any) -> None:
    """Strings and numbers are ids, and come back as they were."""
    read = jsonrpc.read(json.dumps(CALL | {"id": request_id}))
    assert read == Request(request_id, "health", {})
    assert json.loads(jsonrpc.result(request_id, {}))["id"] == request_id


def test_a_message_without_id_is_a_notification() -> None:
    """Whoever leaves the id out wants no reply."""
    assert jsonrpc.read('{"jsonrpc":"2.0","method":"initialized"}') == Notification("initialized", {})


def test_params_come_as_they_are() -> None:
    """The method checks the parameters."""
    assert jsonrpc.read(json.dumps(CALL | {"params": [1]})) == Request(1, "health", [1])
    assert jsonrpc.read(json.dumps(CALL | {"params": None})) == Request(1, "health", None)


NOT_JSON = ["", " ", "{", "nonsense", "{'a': 1}", "NaN", '{"a": 1e999}', '"\\ud800"', "[" * 5000, b"\xff\xfe", "{}{}"]


@pytest.mark.parametrize("raw", NOT_JSON)
def test_what_is_not_json_is_a_parse_error(raw: str | bytes) -> None:
    """A message that cannot be parsed is refused under the null id."""
    read = jsonrpc.read(raw)
    assert isinstance(read, Malformed)
    assert (read.id, read.number) == (None, -32700)
    assert data_of(read)["code"] == "PARSE_ERROR"


def data_of(refusal: Malformed) -> Any:
    """Return the data of the error that answers a message."""
    return json.loads(jsonrpc.error(refusal.id, refusal.error, refusal.number))["error"]["data"]


NO_REQUEST: list[tuple[Any, Any, str]] = [
    ([], None, "$"),
    ([CALL], None, "$"),
    ("health", None, "$"),
    (3, None, "$"),
    (None, None, "$"),
    (True, None, "$"),
    ({}, None, "$.jsonrpc"),
    ({"id": 1, "method": "health"}, 1, "$.jsonrpc"),
    (CALL | {"jsonrpc": "1.0"}, 1, "$.jsonrpc"),
    (CALL | {"jsonrpc": 2.0}, 1, "$.jsonrpc"),
    (CALL | {"id": None}, None, "$.id"),
    (CALL | {"id": True}, None, "$.id"),
    (CALL | {"id": []}, None, "$.id"),
    (CALL | {"id": {"a": 1}}, None, "$.id"),
    ({"jsonrpc": "2.0", "id": 1}, 1, "$.method"),
    (CALL | {"method": 1}, 1, "$.method"),
    (CALL | {"method": None}, 1, "$.method"),
    (CALL | {"parms": {}}, 1, "$.parms"),
    ({"jsonrpc": "2.0", "id": 1, "resutl": {}}, 1, "$.method"),
    ({"jsonrpc": "2.0", "params": {}}, None, "$.method"),
]


@pytest.mark.parametrize(("message", "request_id", "path"), NO_REQUEST)
def test_json_that_is_no_request_names_the_bad_member(message: Any, request_id: Any, path: str) -> None:
    """Valid JSON that is no request is refused under its id where it has one, naming what is wrong."""
    read = jsonrpc.read(json.dumps(message))
    assert isinstance(read, Malformed)
    assert (read.id, read.number, read.error.details["path"]) == (request_id, -32600, path)
    assert read.error.message.startswith(path)
    assert data_of(read)["code"] == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"jsonrpc": "2.0", "id": "t1", "result": {"a": 1}}, Response("t1", {"a": 1}, None)),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1}}, Response(1, None, {"code": 1})),
        ({"id": [1], "result": 3, "error": None, "more": 1}, Response(None, 3, None)),
    ],
)
def test_a_response_is_never_refused(message: Any, read: Response) -> None:
    """A response to a request of ours is taken as it is, however odd: a refusal would be a reply to a reply."""
    assert jsonrpc.read(json.dumps(message)) == read


def test_a_request_of_ours_can_be_read_as_one() -> None:
    """A request to the client is a request like those that it makes."""
    assert jsonrpc.read(jsonrpc.request("t1", "tool/execute", {"a": 1})) == Request("t1", "tool/execute", {"a": 1})


def test_a_batch_is_refused_where_none_is_spoken() -> None:
    """Protocols without batches refuse them in words that help."""
    read = jsonrpc.read(json.dumps([CALL, CALL]))
    assert isinstance(read, Malformed)
    assert "one request a message" in read.error.message


def test_a_batch_is_read_message_by_message() -> None:
    """Each of its messages is what it would be alone; an error names its place."""
    told = {"jsonrpc": "2.0", "method": "initialized"}
    read = jsonrpc.read_batch(json.dumps([CALL, told, 3, {"id": 4}, [CALL]]), 5)
    assert isinstance(read, list)
    assert read[:2] == [Request(1, "health", {}), Notification("initialized", {})]
    refused = [(each.id, each.error.details["path"]) for each in read[2:] if isinstance(each, Malformed)]
    assert refused == [(None, "$[2]"), (4, "$[3].jsonrpc"), (None, "$[4]")]


@pytest.mark.parametrize(("batch", "problem"), [([], "must not be empty"), ([CALL] * 6, "may have 5 messages, not 6")])
def test_a_batch_has_bounds(batch: list[Any], problem: str) -> None:
    """One with nothing in it, or too much, is refused as a whole."""
    read = jsonrpc.read_batch(json.dumps(batch), 5)
    assert isinstance(read, Malformed)
    assert problem in read.error.message


@given(st.text() | st.binary())
def test_reading_never_raises(raw: str | bytes) -> None:
    """Whatever arrives, reading it gives an answer."""
    assert isinstance(jsonrpc.read(raw), Request | Notification | Response | Malformed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)
MEMBERS = st.fixed_dictionaries(
    {}, optional={"jsonrpc": st.just("2.0") | JSON, "id": JSON, "method": st.just("health") | JSON, "params": JSON}
)


@given(MEMBERS)
def test_every_refusal_can_be_sent(message: dict[str, Any]) -> None:
    """Any object is a call, or is refused with an error that has a code and the path of a bad field."""
    read = jsonrpc.read(json.dumps(message))
    if isinstance(read, Malformed):
        error = json.loads(jsonrpc.error(read.id, read.error, read.number))["error"]
        assert error["code"] == -32600
        assert error["data"]["code"] == "INVALID_REQUEST"
        assert error["data"]["details"]["path"].startswith("$")
    else:
        assert message["jsonrpc"] == "2.0"


def test_an_error_has_the_tables_number_and_the_body() -> None:
    """Domain errors carry their number, their sentence, and the body that every surface shows."""
    exc = SessionBusyError("a turn runs", session_id="s1")
    assert json.loads(jsonrpc.error(7, exc)) == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {
            "code": -32002,
            "message": "a turn runs",
            "data": {"code": "SESSION_BUSY", "message": "a turn runs", "retryable": True, "session_id": "s1"},
        },
    }


def test_the_cause_is_in_the_details() -> None:
    """Programs find the finer reason in the error's data."""
    error = json.loads(jsonrpc.error(1, AgentError("gone", cause="cancelled")))["error"]
    assert (error["code"], error["data"]["details"]) == (-32000, {"cause": "cancelled"})


def test_an_internal_error_says_nothing_of_its_cause() -> None:
    """A failure of ours has the number that JSON-RPC gives it, and no more."""
    error = json.loads(jsonrpc.internal_error(3))["error"]
    assert (error["code"], error["message"]) == (-32603, "internal error")
    assert error["data"]["details"] == {"cause": "internal"}


def test_an_unknown_method_is_named_in_short() -> None:
    """The name is shown, cut where somebody sends a book."""
    error = json.loads(jsonrpc.unknown_method(3, "x" * 10_000))["error"]
    assert error["code"] == -32601
    assert error["data"]["code"] == "METHOD_NOT_FOUND"
    assert error["data"]["details"]["path"] == "$.method"
    assert len(error["message"]) < 200


def test_an_event_goes_out_as_its_envelope() -> None:
    """Notifications take domain objects."""
    assert json.loads(jsonrpc.notification("session/event", delta(5, "hi", first_seq=3))) == {
        "jsonrpc": "2.0",
        "method": "session/event",
        "params": {
            "session_id": "s1",
            "seq": 5,
            "first_seq": 3,
            "timestamp": "2026-01-02T03:04:05Z",
            "event": {"type": "text_delta", "delta": "hi"},
        },
    }
