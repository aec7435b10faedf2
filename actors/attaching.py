"""The files of prompts and of results of tools: checked, stored beside the session, and read for its model."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from warren.actors.storage import Storage
from warren.actors.turn.route import Candidate
from warren.attachments import Attachment, Blob, File, reference_of
from warren.errors import StoreError, WarrenError
from warren.fields import FieldValueError
from warren.storage import Attach, Sweep

FIELD: Final = "attachments"
_OF_RESULT: Final = "file"
logger: Final = logging.getLogger("warren.attaching")
OFF_THE_LOOP: Final = 256 * 1024
"""Bytes from which on a thread finds the type and the hash of a file."""
Find = Callable[[str], Awaitable[Attachment | None]]
"""Returns the file that a session has under a hash."""


async def prepared(files: Sequence[File], most: int, find: Find) -> tuple[Blob, ...]:
    """Return the references of files with their bytes, none for those that are stored or elsewhere.

    Raises InvalidParamsError that names the bad field.
    """
    return tuple([await _prepared(f"{FIELD}[{index}]", file, most, find) for index, file in enumerate(files)])


async def _prepared(place: str, file: File, most: int, find: Find) -> Blob:
    if file.sha256 is not None:
        found = await find(file.sha256)
        if found is None:
            raise FieldValueError(f"{place}.sha256", "is that of no attachment of the session").refusal()
        return Blob(found if file.name is None else attrs.evolve(found, name=file.name), b"")
    try:
        if file.data is None or len(file.data) < OFF_THE_LOOP:
            reference = reference_of(file, most)
        else:
            reference = await trio.to_thread.run_sync(partial(reference_of, file, most))
    except FieldValueError as exc:
        raise FieldValueError(f"{place}.{exc.field}", exc.problem).refusal() from None
    return Blob(reference, file.data or b"")


def check_kinds(files: Sequence[Attachment], candidates: Sequence[Candidate]) -> None:
    """Refuse files that one of the models of a turn does not take. Raises InvalidParamsError that names the file."""
    for each in candidates:
        for index, file in enumerate(files):
            if file.kind not in each.kinds:
                known = ", ".join(sorted(each.kinds)) or "none"
                problem = f"the model {each.choice.model!r} takes no {file.kind} as an attachment; it takes: {known}"
                raise FieldValueError(f"{FIELD}[{index}]", problem).refusal()


def references(blobs: Sequence[Blob]) -> tuple[Attachment, ...]:
    """Return the references of files."""
    return tuple(each.attachment for each in blobs)


def new_of(blobs: Sequence[Blob]) -> tuple[Blob, ...]:
    """Return the files that are to be stored."""
    return tuple(each for each in blobs if each.data)


async def read(  # noqa: PLR0917 - the place and the part
    storage: Storage, tenant: str, session_id: str, file: Attachment, start: int, size: int
) -> bytes:
    """Return some bytes of a file of a session. Raises StoreError, with the cause `missing` if they are not there."""
    reads = (await storage.reader()).of(tenant)
    data = None if file.sha256 is None else await reads.blob(session_id, file.sha256, start, size)
    if data is None:
        raise StoreError(f"the bytes of {file.label} are not in the store", session_id=session_id, cause="missing")
    return data


async def sweep(storage: Storage) -> None:
    """Remove the files of messages that were never stored, as their processes died between the one and the other."""
    try:
        if await (await storage.reader()).unsure_files():
            await storage.write(Sweep())
    except WarrenError as exc:
        logger.warning("files that no message names are still in the store: %s", exc)


async def find_in(storage: Storage, tenant: str, session_id: str, sha256: str) -> Attachment | None:
    """Return the file that a session has under a hash. Raises StoreError."""
    return await (await storage.reader()).of(tenant).attachment(session_id, sha256)


async def keep(
    storage: Storage, tenant: str, session_id: str, most: int, files: Sequence[File]
) -> Sequence[Attachment | str]:
    """Store the files of a result or of an answer; return the reference of each, or a note why it is not kept."""
    find, found = partial(find_in, storage, tenant, session_id), list[Blob | str]()
    for file in files:
        try:
            found.append(await _prepared(_OF_RESULT, file, most, find))
        except WarrenError as exc:
            found.append(_note(file, exc))
    blobs = [each for each in found if isinstance(each, Blob)]
    try:
        if new := new_of(blobs):
            await storage.write(Attach(session_id, new))
    except WarrenError as exc:  # such as over a limit of the tenant: the text beside the files is worth telling
        return [each if isinstance(each, str) else _note(each.attachment, exc) for each in found]
    return [each if isinstance(each, str) else each.attachment for each in found]


def _note(file: File | Attachment, problem: WarrenError) -> str:
    reason = problem.message.removeprefix(f"$.{_OF_RESULT}.").replace(": ", " ", 1)
    return f"[{file.name or file.media_type or 'a file'}: not kept: {reason}]"
