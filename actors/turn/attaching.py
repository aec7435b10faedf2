"""The files of prompts and of results of tools: checked, stored beside the session, and read for its model."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from warren.actors.resources.storage import Storage
from warren.actors.turn.route import Candidate
from warren.base.errors import StoreError, WarrenError
from warren.base.fields import FieldValueError, encodable
from warren.conversation.attachments import Attachment, Blob, File, name_in, reference_of
from warren.models.tools import ToolError
from warren.storage.operations import Attach, Sweep
from warren.storage.queries import AttachmentBytes, StoredAttachment, UnsureFiles

FIELD: Final = "attachments"
_OF_RESULT: Final = "file"
logger: Final = logging.getLogger("warren.attaching")
OFF_THE_LOOP: Final = 256 * 1024
"""Bytes from which on a thread finds the type and the hash of a file."""
FETCH_SECONDS: Final = 30.0
"""Seconds for fetching all files of a prompt."""
MOST_TOLD: Final = 500
"""Characters of the reason why a file is not kept: it may have a URL in it."""
FetchFile = Callable[[str, int], Awaitable[bytes]]
"""Returns the bytes of a file at a URL, of which it may have a number. Raises ToolError."""
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
        return await _referred(file, most)
    except FieldValueError as exc:
        raise FieldValueError(f"{place}.{exc.field}", exc.problem).refusal() from None


async def _referred(file: File, most: int) -> Blob:
    """Return the reference of a file with its bytes. Raises FieldValueError that names a bad field of it."""
    if file.data is None or len(file.data) < OFF_THE_LOOP:
        return Blob(reference_of(file, most), file.data or b"")
    return Blob(await trio.to_thread.run_sync(partial(reference_of, file, most)), file.data)


async def fetched(blobs: Sequence[Blob], most: int, fetch: FetchFile) -> tuple[Blob, ...]:
    """Return the files of a prompt, those at a URL with their bytes, to be stored.

    A file that cannot be had keeps its URL, and its reference says why. Together the files may have `most` bytes and
    take `FETCH_SECONDS`.
    """
    found, deadline = list[Blob](), trio.current_time() + FETCH_SECONDS
    for each in blobs:
        if each.attachment.url is None:
            found.append(each)
        else:
            kept = await _fetched(each.attachment, each.attachment.url, most, fetch, deadline)
            most -= len(kept.data)
            found.append(kept)
    return tuple(found)


async def _fetched(file: Attachment, url: str, most: int, fetch: FetchFile, deadline: float) -> Blob:
    problem = f"the files of the prompt took longer than {FETCH_SECONDS:g} s"
    try:
        with trio.move_on_at(deadline):
            made = await _referred(File(await fetch(url, most), name=file.name or name_in(url)), most)
            if made.attachment.kind == file.kind:
                return made
            problem = f"the file is {made.attachment.media_type}, and not {file.media_type}"
    except FieldValueError as exc:
        problem = f"the file {exc.problem}"
    except (ToolError, OSError) as exc:  # OSError: the certificates of the system cannot be read
        problem = str(exc).removeprefix("url: ")
    return Blob(attrs.evolve(file, not_kept=encodable(problem[:MOST_TOLD])), b"")


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
    wanted = None if file.sha256 is None else AttachmentBytes(session_id, tenant, file.sha256, start, size)
    data = None if wanted is None else await storage.read(wanted)
    if data is None:
        raise StoreError(f"the bytes of {file.label} are not in the store", session_id=session_id, cause="missing")
    return data


async def sweep(storage: Storage) -> None:
    """Remove the files of messages that were never stored, as their processes died between the one and the other."""
    try:
        if await storage.read(UnsureFiles()):
            await storage.write(Sweep())
    except WarrenError as exc:
        logger.warning("files that no message names are still in the store: %s", exc)


async def find_in(storage: Storage, tenant: str, session_id: str, sha256: str) -> Attachment | None:
    """Return the file that a session has under a hash. Raises StoreError."""
    return await storage.read(StoredAttachment(session_id, tenant, sha256))


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
