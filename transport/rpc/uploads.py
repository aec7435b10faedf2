"""Files that clients send ahead of the prompts that they go with: in pieces, because a message is bounded. No I/O.

They wait in the memory of the process that the client is connected to, and are stored with the prompt, if that is not
refused: a file that is never used leaves nothing behind.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from time import monotonic
from typing import Any, Final

import attrs

from warren.attachments import Attachment, File, media_type_of
from warren.errors import CapacityExceededError
from warren.fields import FieldValueError
from warren.transport.rpc.params import PutFile
from warren.transport.rpc.results import FileReceived
from warren.values import define

MAX_WAITING: Final = 256 * 1024 * 1024
"""Bytes of such files in one process."""
IDLE: Final = 60.0
"""Seconds after which a file that nothing is done with gives way to others."""
MAX_FILES: Final = 100
"""Such files of one client; the oldest gives way."""


def _sha256() -> Any:
    from hashlib import sha256  # noqa: PLC0415 - it loads OpenSSL, and few clients send files

    return sha256()


@define(eq=False)
class Upload:
    """A file that is on its way, or waits for its prompt.

    Attributes:
        size: its bytes, all of them.
        touched: the time at which something was last done with it.
        body: the bytes that have come.
        digest: their SHA-256.
        file: the whole file, once it is here.
        users: requests that run with it.
        dropped: whether it had to give way.
    """

    size: int
    touched: float
    body: BytesIO = attrs.field(factory=BytesIO)
    digest: Any = attrs.field(factory=_sha256)  # piece by piece: of all at once it would hold up the event loop
    file: File | None = None
    users: int = 0
    dropped: bool = False


@define(eq=False)
class Room:
    """The room for such files in one process.

    Attributes:
        most: bytes that there may be.
        clock: the time in seconds, on a clock that never goes back.
        size: bytes that are announced.
    """

    most: int = MAX_WAITING
    clock: Callable[[], float] = monotonic
    size: int = 0
    _uploads: dict[int, Upload] = attrs.field(factory=dict)  # by identity, the oldest first

    def take(self, size: int) -> Upload:
        """Return the place of a file of so many bytes. Raises CapacityExceededError if there is no room."""
        now = self.clock()
        for each in list(self._uploads.values()):
            if self.size + size > self.most and not each.users and now - each.touched > IDLE:
                self.drop(each)
        if self.size + size > self.most:
            problem = (
                f"{self.size} bytes of files wait for their prompts, and there may be {self.most}: try again later"
            )
            raise CapacityExceededError(problem, cause="uploads")
        upload = Upload(size, now)
        self._uploads[id(upload)] = upload
        self.size += size
        return upload

    def drop(self, upload: Upload) -> None:
        """Give the place of a file up. Idempotent."""
        if self._uploads.pop(id(upload), None) is not None:
            self.size -= upload.size
            upload.dropped, upload.file, upload.body = True, None, BytesIO()


@define(eq=False)
class Uploads:
    """The files of one client, by their tenants: another node is the client of the callers of all tenants."""

    room: Room
    _coming: dict[tuple[str, str], Upload] = attrs.field(factory=dict)  # by tenant, and the name of the client's own
    _whole: dict[tuple[str, str], Upload] = attrs.field(factory=dict)  # by tenant and hash

    def put(self, tenant: str, piece: PutFile, most: int) -> FileReceived:
        """Take the next piece of a file.

        Args:
            tenant: the tenant of the caller.
            piece: the piece.
            most: bytes that a file may have.

        Raises:
            InvalidParamsError: if the piece is not the next one, or the file is too large or of no known kind.
            CapacityExceededError: if there is no room for the file.
        """
        try:
            return self._put(tenant, piece, most)
        except FieldValueError as exc:
            raise exc.refusal() from None

    def _put(self, tenant: str, piece: PutFile, most: int) -> FileReceived:
        key, size = (tenant, piece.upload_id), len(piece.data) if piece.size is None else piece.size
        if size > most:
            raise FieldValueError(
                "data" if piece.size is None else "size",
                f"is {size} bytes, and a file may have {most} (limits.max_attachment)",
            )
        if not piece.offset:
            self._forget(self._coming, key)
            self._coming[key] = self.room.take(size)
            self._bound(self._coming)
        upload = self._coming.get(key)
        if upload is None or upload.dropped:
            raise FieldValueError("offset", "must be 0: nothing of this file is here")
        received = upload.body.tell()
        if (piece.offset, size) != (received, upload.size):
            name, known = ("offset", received) if piece.offset != received else ("size", upload.size)
            raise FieldValueError(name, f"must be {known}, after the pieces before it")
        if received + len(piece.data) > size:
            raise FieldValueError("data", f"goes beyond the {size} bytes of the file")
        upload.touched = self.room.clock()
        upload.body.write(piece.data)
        upload.digest.update(piece.data)
        if upload.body.tell() < size:
            return FileReceived(upload.body.tell())
        try:
            return FileReceived(size, self._end(tenant, key, upload, piece))
        except FieldValueError:
            self._forget(self._coming, key)
            raise

    def _end(self, tenant: str, key: tuple[str, str], upload: Upload, last: PutFile) -> Attachment:
        """Let a file that is whole wait for its prompt. Raises FieldValueError if it is of no known kind."""
        data = upload.body.getvalue()  # no copy, as nothing more is written
        media_type = media_type_of(data, File(data, media_type=last.media_type, name=last.name))
        upload.file = File(data, media_type=media_type, name=last.name)
        del self._coming[key]
        hashed = upload.digest.hexdigest()
        self._forget(self._whole, (tenant, hashed))
        self._whole[tenant, hashed] = upload
        self._bound(self._whole)
        return Attachment(media_type, hashed, len(data), last.name)

    @contextmanager
    def lent(self, tenant: str, files: Sequence[File]) -> Iterator[tuple[File, ...]]:
        """Yield files with the bytes of those that were sent ahead; all others, such as the session's, as they are.

        A body that returns has used them, so they go; after an error they stay, for another try.
        """
        hashes = {each.sha256 for each in files if each.sha256 is not None}
        found = {hashed: self._whole.get((tenant, hashed)) for hashed in hashes}
        used = {hashed: each for hashed, each in found.items() if each is not None and not each.dropped}
        for each in used.values():
            each.users += 1
        try:
            yield tuple(_with_bytes(each, used.get(each.sha256 or "")) for each in files)
            for hashed, each in used.items():
                if self._whole.get((tenant, hashed)) is each:
                    del self._whole[tenant, hashed]
        finally:
            for hashed, each in used.items():
                each.users -= 1
                if not each.users and self._whole.get((tenant, hashed)) is not each:
                    self.room.drop(each)

    def close(self) -> None:
        """Drop all files: the client is gone."""
        for each in (*self._coming.values(), *self._whole.values()):
            self.room.drop(each)
        self._coming.clear()
        self._whole.clear()

    def _forget(self, uploads: dict[tuple[str, str], Upload], key: tuple[str, str]) -> None:
        earlier = uploads.pop(key, None)
        if earlier is not None and not earlier.users:
            self.room.drop(earlier)

    def _bound(self, uploads: dict[tuple[str, str], Upload]) -> None:
        if len(uploads) > MAX_FILES:
            self._forget(uploads, next(iter(uploads)))


def _with_bytes(file: File, upload: Upload | None) -> File:
    if upload is None or upload.file is None:
        return file
    return upload.file if file.name is None else attrs.evolve(upload.file, name=file.name)
