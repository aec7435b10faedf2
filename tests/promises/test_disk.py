"""A disk that fails at any call, and one that loses its power: what was confirmed is there."""

import random
from pathlib import Path
from typing import Final, Literal

import apsw
import attrs
import pytest

from tests.faults import Disk, faulty_disk
from tests.support.checks import assert_valid_transcript
from tests.support.models import FunctionModel, reply
from tests.support.runtime import open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import StoreError, WarrenError
from warren.conversation.messages import AssistantMessage
from warren.storage.sqlite.file import FILE_NAME

pytestmark = pytest.mark.virtual_time
FAULTS: Final = (apsw.IOError, apsw.FullError, "short")


async def echo(request: object, _emit: object) -> object:
    """Answer with the number of messages that the model sees."""
    return reply(f"answer {len(request.messages)}")  # type: ignore[attr-defined]


MODEL: Final = FunctionModel(echo)  # type: ignore[arg-type]


async def confirmed(service: Service, session_id: str, turns: int, failed: list[StoreError] | None = None) -> list[str]:
    """Run turns; return the answers that were confirmed."""
    answers = []
    for number in range(turns):
        try:
            answers.append((await service.start_turn(session_id, f"question {number}")).text)
        except StoreError as exc:
            if failed is None:
                raise
            failed.append(exc)
    return answers


async def answers_of(service: Service, session_id: str) -> list[str]:
    """Return the answers that are in the store, after a look at the whole."""
    messages = await transcript(service, session_id)
    assert_valid_transcript(messages)
    events = await replay(service, session_id)
    assert [each.seq for each in events] == sorted({each.seq for each in events})
    return [message.text for message in messages if isinstance(message, AssistantMessage)]


def check_file(folder: Path) -> None:
    """Have SQLite look at every page."""
    db = apsw.Connection(str(folder / FILE_NAME))
    assert db.pragma("integrity_check") == "ok"
    db.close()


@pytest.mark.parametrize("fault", FAULTS, ids=["io error", "no space", "short write"])
async def test_a_fault_at_every_call_of_a_commit(tmp_path: Path, fault: type[Exception] | str) -> None:
    """Whichever write or flush of a commit fails: a typed error, nothing half done, and the next turn is stored."""
    with faulty_disk() as disk:
        async with open_runtime(MODEL, store=tmp_path / "count") as service:
            session_id = (await service.create_session("begin")).session_id
            before = disk.calls
            await confirmed(service, session_id, 1)
            calls = disk.calls - before
        assert calls > 2
        for number in range(1, calls + 1):
            await _fails_at(disk, tmp_path / str(number), number, fault)


async def _fails_at(disk: Disk, folder: Path, number: int, fault: type[Exception] | str) -> None:
    async with open_runtime(MODEL, store=folder) as service:
        session_id = (await service.create_session("begin")).session_id
        disk.fail_at, disk.fail_as, disk.faults = disk.calls + number, fault, 0  # type: ignore[assignment]
        failed: list[StoreError] = []
        answers = await confirmed(service, session_id, 3, failed)
        assert disk.faults or fault == "short"
        assert len(failed) == disk.faults
        assert {error.cause for error in failed} <= {"io_error", "disk_full"}
        assert (await answers_of(service, session_id))[1:] == answers
        # Other sessions never notice.
        assert (await service.create_session("another")).text
    disk.fail_at = None
    check_file(folder)


@attrs.frozen
class Cut:
    """A folder after a power cut, and the turns that had been confirmed by then."""

    folder: Path
    answers: tuple[str, ...]


async def cuts(disk: Disk, folder: Path, synchronous: Literal["FULL", "NORMAL"]) -> tuple[str, list[Cut]]:
    """Run turns; after each, note what is confirmed and what would be left, with and without luck."""
    chance, found = random.Random(3), list[Cut]()  # noqa: S311 - it hides nothing
    async with open_runtime(MODEL, store=folder, synchronous=synchronous) as service:
        session_id = (await service.create_session("begin")).session_id
        answers: list[str] = []
        for number in range(12):
            answers += await confirmed(service, session_id, 1)
            for lucky in (None, chance):
                found.append(Cut(folder.parent / f"cut-{number}-{lucky is chance}", tuple(answers)))
                disk.cut_power(found[-1].folder, lucky)
    return session_id, found


async def test_no_power_cut_loses_what_was_confirmed(tmp_path: Path) -> None:
    """With synchronous=FULL every turn that was confirmed is there, whole, and the session goes on."""
    with faulty_disk() as disk:
        disk.platters = {}
        session_id, found = await cuts(disk, tmp_path / "store", "FULL")
    for cut in found:
        async with open_runtime(MODEL, store=cut.folder) as service:
            assert (await answers_of(service, session_id))[1:] == list(cut.answers)
            await confirmed(service, session_id, 1)
        check_file(cut.folder)


async def test_a_power_cut_may_lose_the_last_turns_where_that_was_chosen(tmp_path: Path) -> None:
    """With synchronous=NORMAL the newest turns may be gone, never one in the middle, and the file is whole."""
    with faulty_disk() as disk:
        disk.platters = {}
        session_id, found = await cuts(disk, tmp_path / "store", "NORMAL")
    lost = 0
    for cut in found:
        async with open_runtime(MODEL, store=cut.folder) as service:
            try:
                kept = (await answers_of(service, session_id))[1:]
                await confirmed(service, session_id, 1)
            except WarrenError:  # the session itself was among them
                kept = []
            assert kept == list(cut.answers)[: len(kept)]
            lost += len(cut.answers) - len(kept)
        check_file(cut.folder)
    assert lost
