"""Texts of every kind come back as they are, or are refused as a store in files refuses them."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.conformance.homes import done, put
from tests.storage.samples import TEXTS, causes, entry, moved, of_text, opened, turn, updated
from tests.support.postgres import database
from warren.storage.operations import Label
from warren.storage.postgres.driver import array, escaped, unescaped
from warren.storage.queries import (
    ANY_TENANT,
    CreatedUnder,
    ModelContext,
    SessionList,
    SessionRow,
    StoredEvents,
    StoredHistory,
    StoredMessages,
    WaitingInputs,
    WaitingSessions,
    WasTold,
)
from warren.storage.store import Store


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_escaped_texts_come_back(text: str) -> None:
    """They have no NUL, and texts without special characters are as they were."""
    assert "\0" not in escaped(text)
    assert unescaped(escaped(text)) == text
    assert escaped(text) == text or "\0" in text or "\x01" in text


@given(st.text(alphabet="\0\x01012"), st.text(alphabet="\0\x01012"))
def test_escaped_texts_stay_different(one: str, other: str) -> None:
    """Keys that differ stay different."""
    assert (escaped(one) == escaped(other)) == (one == other)


def test_a_literal_holds_null_and_the_text() -> None:
    """Numbers, truth, nothing and texts of each kind are elements of an array."""
    assert array([1, None, True, False, "NULL", 'a"\\b']) == '{1,NULL,t,f,"NULL","a\\"\\\\b"}'


@given(st.lists(st.text().map(escaped)))
def test_a_literal_of_a_column_is_that_of_its_values(texts: list[str]) -> None:
    """Texts, bytes and numbers of one kind are written together, as they are one by one."""
    each = ",".join(array([text, None]).removesuffix(",NULL}").removeprefix("{") for text in texts)
    assert array(texts) == array([text.encode() for text in texts]) == "{" + each + "}"
    assert array(list(range(len(texts)))) == "{" + ",".join(str(at) for at in range(len(texts))) + "}"


def test_a_text_with_nul_is_never_two_elements() -> None:
    """A text that nobody has escaped is an error, also among others."""
    for bad in (["a\0b"], ["a", "b\0"], [b"a\0b"]):
        with pytest.raises(ValueError, match="NUL"):
            array(bad)


async def facts(store: Store, text: str) -> list[object]:
    """Return all that can be read of a session with the text."""
    session_id = "id" + text
    entered = await store.write([put("said" + text, key=text, session_id=session_id)])
    known = await store.write([put("again", key=text, session_id=session_id)])
    found: list[object] = [
        await store.read(SessionRow(session_id, ANY_TENANT)),
        await store.read(StoredMessages(session_id)),
        entered,
        known,
    ]
    found += [
        await store.read(StoredEvents(session_id)),
        await store.read(WaitingInputs(session_id, ANY_TENANT)),
        await store.read(StoredHistory(session_id, "default")),
    ]
    found += [
        await store.read(CreatedUnder("default", "key" + text)),
        await store.read(SessionList("default", labels={"label" + text: text})),
    ]
    found += [await store.read(ModelContext(session_id, 0, 2))]
    labelled = await done(store, Label(session_id, {"other" + text: text}, "title" + text))
    return [*found, labelled.record, list(await store.read(WaitingSessions()))]


@pytest.mark.parametrize("text", TEXTS)
async def test_a_text_is_read_as_from_files(text: str, tmp_path: Path) -> None:
    """Every place of a text holds NUL, quotes, braces and each plane of Unicode."""
    with database() as url:
        async with AsyncExitStack() as stack:
            files = await stack.enter_async_context(opened(tmp_path))
            base = await stack.enter_async_context(postgres_opened(url, lease=60.0))
            for store in (files, base):
                await every(store, of_text(text))
                second = turn("id" + text, 1)
                await every(store, moved(second, entry(2, 2, "summary " + text)))
            assert await facts(base, text) == await facts(files, text)
            assert await base.read(WasTold("id" + text, "gone", "peer", text))
            assert await base.read(ModelContext("id" + text, 2, 4)) == await files.read(ModelContext("id" + text, 2, 4))


async def test_a_text_that_is_no_text_is_refused_as_from_files(tmp_path: Path) -> None:
    """A lone surrogate has no bytes; its neighbours in the group are stored."""
    bad = updated(turn("a"), title="\ud800")
    with database() as url:
        async with opened(tmp_path) as files, postgres_opened(url, lease=60.0) as base:
            for store in (files, base):
                assert causes(await store.write([turn("b"), bad])) == ["ok", "unstorable"]
                assert [each.session_id for each in await store.read(SessionList("default"))] == ["b"]


async def test_a_text_of_10_mb_comes_back_from_each_home(tmp_path: Path) -> None:
    """NUL, other alphabets and characters of the last plane are in it."""
    text = "x\0é\U0010ffff" * 1_250_000
    commit = turn("a", text=text)
    with database() as url:
        async with opened(tmp_path) as files, postgres_opened(url, timeout=30.0, lease=60.0) as base:
            for store in (files, base):
                await every(store, commit)
                assert (
                    (await store.read(StoredMessages("a")))[0] == list(commit.messages)
                ) is True  # without a diff of them
