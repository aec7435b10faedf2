"""Sessions of a version that had no bounds for names and labels: they go on as they are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.models import says
from tests.support.runtime import new_session, open_runtime
from warren.base.errors import InvalidParamsError
from warren.base.fields import MAX_LABEL_BYTES, MAX_LABELS, FieldValueError
from warren.conversation.options import MAX_FALLBACK, MAX_HOSTED, MAX_TOOLS
from warren.settings.config import Config
from warren.storage.rows import decoded

pytestmark = pytest.mark.virtual_time

MANY: Mapping[str, Any] = {
    "fallback": ["test"] * (MAX_FALLBACK + 1),
    "hosted_tools": {f"tool_{number}": {} for number in range(MAX_HOSTED + 1)},
}
TOOLS = ["look"] * (MAX_TOOLS + 1)


def put(folder: Path, session_id: str, column: str, value: Mapping[str, Any]) -> None:
    """Put what an earlier version wrote into the row of a session."""
    (file,) = folder.glob("*.sqlite3")
    db = apsw.Connection(str(file))
    db.execute(f"UPDATE sessions SET {column} = ? WHERE session_id = ?", (json.dumps(value), session_id))  # noqa: S608
    assert db.changes() == 1
    db.close()


async def test_more_names_than_one_may_ask_for(tmp_path: Path) -> None:
    """Their session is read, runs turns and is forked with all of them; nobody may ask for as many."""
    async with open_runtime(says(), store=tmp_path) as service:
        session_id = await new_session(service)
    put(tmp_path, session_id, "details", {**MANY, "tools": TOOLS})
    async with open_runtime(says("one", "two"), store=tmp_path) as service:
        assert (await service.start_turn(session_id, "hi")).text == "one"
        fork = (await service.fork(session_id)).state.session_id
        assert (await service.start_turn(fork, "hi", temperature=1)).text == "two"
        assert [row.session_id for row in (await service.list()).sessions] == [fork, session_id]
        for field, value in (*MANY.items(), ("tools", TOOLS)):
            with pytest.raises(InvalidParamsError) as caught:
                await service.create_session("hi", **{field: value})
            assert caught.value.path == f"$.{field}"


@pytest.mark.parametrize("field", MANY)
async def test_a_waiting_input_with_more_names(tmp_path: Path, field: str) -> None:
    """It is read as it is; neither a turn nor the settings of a runtime may have as many."""
    row = {"input_id": "i", "kind": "queue", "text": "hi", "created_at": "2026-01-01T00:00:00Z"}
    input_ = decoded(json.dumps({**row, "options": {field: MANY[field]}}), "s")
    assert len(getattr(input_.options, field)) == len(MANY[field])
    with pytest.raises(FieldValueError) as refused:
        Config(**{field: MANY[field]})
    assert refused.value.field == field
    async with open_runtime(says(), store=tmp_path) as service:
        session_id = await new_session(service)
        with pytest.raises(InvalidParamsError) as caught:
            await service.start_turn(session_id, "hi", mode="queue", **{field: MANY[field]})
        assert caught.value.path == f"$.{field}"


@pytest.mark.parametrize("count", [MAX_LABELS + 1, 2])
async def test_more_labels_than_one_may_set(tmp_path: Path, count: int) -> None:
    """They can be changed and go along to a fork, but none may be added to them."""
    labels = {f"l{number}": "x" * (MAX_LABEL_BYTES if number else 1) for number in range(count)}
    async with open_runtime(says(), store=tmp_path) as service:
        session_id = await new_session(service)
    put(tmp_path, session_id, "labels", labels)
    async with open_runtime(says(), store=tmp_path) as service:
        assert (await service.read(session_id)).state.labels == labels
        for change in (service.fork, service.label):
            with pytest.raises(InvalidParamsError, match="at most") as caught:
                await change(session_id, labels={"more": "x"})
            assert caught.value.path == "$.labels"
            assert (await change(session_id, labels={"l0": "y"})).state.labels == {**labels, "l0": "y"}
        assert len((await service.fork(session_id, title="again")).state.labels) == count
