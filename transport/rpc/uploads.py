"""Files that clients send ahead of the prompts that they go with: in pieces, because a message is bounded. No I/O.

They wait in the memory of the process that the client is connected to, and are stored with the prompt, if that is not
refused: a file that is never used leaves nothing behind.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from time import monotonic
from typing import Any, Final

import attrs

from warren.base.errors import CapacityExceededError
from warren.base.fields import FieldValueError
from warren.base.values import define
from warren.conversation.attachments import Attachment, File, media_type_of
from warren.settings.config import Limits
from warren.transport.rpc.params import PutFile
from warren.transport.rpc.results import FileReceived
from warren.transport.rpc.shares import Owner, Shares

IDLE: Final = 60.0
"""Seconds after which a file that nothing is done with gives way to others."""
SLOWEST: Final = 32 * 1024
"""Bytes a second in which a file has to come at least; one that is slower by `IDLE` gives way to others."""
MAX_FILES: Final = 100
"""Such files of one client for a tenant; the oldest gives way."""


def _sha256() -> Any:
    from hashlib import sha256  # noqa: PLC0415 - it loads OpenSSL, and few clients send files

    return sha256()


@define(eq=False)
class Upload:
    """A file that is on its way, or waits for its prompt.

    Attributes:
        owner: whose it is.
        begun: the time at which its first bytes came.
        touched: the time at which something was last done with it.
        size: its bytes, all of them; None as long as nobody knows.
        held: bytes that are counted for it: those that have come.
        body: these bytes.
        digest: their SHA-256.
        file: the whole file, once it is here.
        sent: how often it was sent and not used yet: several clients behind another node may send the same file.
        users: requests that run with it.
        dropped: whether it had to give way.
    """

    owner: Owner
    begun: float
    touched: float
    size: int | None = None
    held: int = 0
    body: BytesIO = attrs.field(factory=BytesIO)
    digest: Any = attrs.field(factory=_sha256)  # piece by piece: of all at once it would hold up the event loop
    file: File | None = None
    sent: int = 1
    users: int = 0
    dropped: bool = False

    def is_late(self, now: float) -> bool:
        """Return whether it gives way to any other file."""
        slow = self.file is None and now - self.begun > IDLE + self.held / SLOWEST
        return slow or now - self.touched > IDLE


def _files() -> Shares:
    return Shares("files that wait for their prompts", Limits().uploads)


def _bytes() -> Shares:
    return Shares("bytes of files that wait for their prompts", Limits().upload_bytes)


@define(eq=False)
class Room:
    """The room for such files in one process. Bytes that were announced and have not come take none.

    Attributes:
        files: the room for their number.
        bytes: the room for their bytes.
        clock: the time in seconds, on a clock that never goes back.
    """

    files: Shares = attrs.field(factory=_files)
    bytes: Shares = attrs.field(factory=_bytes)
    clock: Callable[[], float] = monotonic
    _uploads: dict[int, Upload] = attrs.field(factory=dict)  # by identity, the one that was touched first at first

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self.bytes.total

    def begin(self, owner: Owner, size: int | None = None) -> Upload:
        """Return the place of a file, of which nothing is here yet. Raises CapacityExceededError if there is none."""
        now = self.clock()
        upload = Upload(owner, now, now, size)
        if self.files.full(owner) is not None:
            self._drop_late(upload)
            if (part := self.files.full(owner)) is not None:
                raise _no_room(self.files.refusal(owner, part).message)
        self.files.add(owner, 1)
        self._uploads[id(upload)] = upload
        return upload

    def take(self, upload: Upload, size: int) -> None:
        """Count bytes of a file that have come. Raises CapacityExceededError if there is no room for them."""
        if upload.dropped:
            raise _no_room("the file had to give way to others: try again later")
        if self.bytes.full(upload.owner, size) is not None:
            self._make_room(upload, size)
        upload.touched = self.clock()
        upload.held += size
        self.bytes.add(upload.owner, size)
        self._uploads[id(upload)] = self._uploads.pop(id(upload))

    def drop(self, upload: Upload) -> None:
        """Give the place of a file up. Idempotent."""
        if self._uploads.pop(id(upload), None) is not None:
            self.files.add(upload.owner, -1)
            self.bytes.add(upload.owner, -upload.held)
            upload.dropped, upload.file, upload.body = True, None, BytesIO()

    def _drop_late(self, upload: Upload) -> dict[str, deque[Upload]]:
        """Drop the files that are late, for another one; return those that may give way besides, by tenant."""
        now, waiting = self.clock(), defaultdict[str, deque[Upload]](deque)
        for each in list(self._uploads.values()):
            if each.users or each is upload:
                continue
            if each.is_late(now):
                self.drop(each)
            else:
                waiting[each.owner[0]].append(each)
        return waiting

    def _make_room(self, upload: Upload, size: int) -> None:
        """Drop files that are late, and then those of the tenants that have most, as long as they have more."""
        waiting, owner, rooms = self._drop_late(upload), upload.owner, self.bytes
        while (part := rooms.full(owner, size)) is not None:
            if part != "process":
                raise _no_room(rooms.refusal(owner, part).message)
            richest = max(waiting, key=rooms.of_tenant, default=owner[0])
            if rooms.of_tenant(richest) <= rooms.of_tenant(owner[0]) + size:
                raise _no_room("there is no room for more files: try again later")  # and no word of those of others
            self.drop(waiting[richest].popleft())
            if not waiting[richest]:
                del waiting[richest]


def _no_room(problem: str) -> CapacityExceededError:
    return CapacityExceededError(problem, cause="uploads")


@define(eq=False)
class Uploads:
    """The files of one client, by their tenants: another node is the client of the callers of all tenants."""

    room: Room
    _coming: dict[tuple[str, str], Upload] = attrs.field(factory=dict)  # by tenant, and the name of the client's own
    _whole: dict[tuple[str, str], Upload] = attrs.field(factory=dict)  # by tenant and hash

    def put(self, owner: Owner, piece: PutFile, most: int) -> FileReceived:
        """Take the next piece of a file.

        Args:
            owner: the caller.
            piece: the piece.
            most: bytes that a file may have.

        Raises:
            InvalidParamsError: if the piece is not the next one, or the file is too large or of no known kind.
            CapacityExceededError: if there is no room for the file.
        """
        try:
            return self._put(owner, piece, most)
        except FieldValueError as exc:
            raise exc.refusal() from None

    def _put(self, owner: Owner, piece: PutFile, most: int) -> FileReceived:
        tenant = owner[0]
        key, size = (tenant, piece.upload_id), len(piece.data) if piece.size is None else piece.size
        if size > most:
            raise FieldValueError(
                "data" if piece.size is None else "size",
                f"is {size} bytes, and a file may have {most} (limits.max_attachment)",
            )
        if not piece.offset:
            self._forget(self._coming, key)
            self._coming[key] = self.room.begin(owner, size)
            self._bound(self._coming, tenant)
        upload = self._coming.get(key)
        if upload is None or upload.dropped:
            raise FieldValueError("offset", "must be 0: nothing of this file is here")
        received = upload.body.tell()
        if (piece.offset, size) != (received, upload.size):
            name, known = ("offset", received) if piece.offset != received else ("size", upload.size)
            raise FieldValueError(name, f"must be {known}, after the pieces before it")
        if received + len(piece.data) > size:
            raise FieldValueError("data", f"goes beyond the {size} bytes of the file")
        try:
            self.room.take(upload, len(piece.data))
        except CapacityExceededError:
            if not received:
                self._forget(self._coming, key)
            raise
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
        del self._coming[key]
        hashed = upload.digest.hexdigest()
        earlier = self._whole.pop((tenant, hashed), None)
        if earlier is not None and earlier.file is not None and earlier.file.data is not None:
            self.room.drop(upload)
            data, upload = earlier.file.data, earlier
            upload.sent += 1
            self.room.take(upload, 0)
        upload.file = File(data, media_type=media_type, name=last.name)
        self._whole[tenant, hashed] = upload
        self._bound(self._whole, tenant)
        return Attachment(media_type, hashed, len(data), last.name)

    @contextmanager
    def lent(self, tenant: str, files: Sequence[File]) -> Iterator[tuple[File, ...]]:
        """Yield files with the bytes of those that were sent ahead; all others, such as the session's, as they are.

        A body that returns has used them, so they go if they were sent once; after an error they stay, for another try.
        """
        hashes = {each.sha256 for each in files if each.sha256 is not None}
        found = {hashed: self._whole.get((tenant, hashed)) for hashed in hashes}
        lent = {hashed: each for hashed, each in found.items() if each is not None and not each.dropped}
        used = [each for each in lent.values() if each.sent]  # the others were sent for requests that run
        for each in lent.values():
            each.users += 1
        for each in used:
            each.sent -= 1
        try:
            yield tuple(_with_bytes(each, lent.get(each.sha256 or "")) for each in files)
        except BaseException:
            for each in used:
                each.sent += 1
            raise
        finally:
            for hashed, each in lent.items():
                each.users -= 1
                is_known = self._whole.get((tenant, hashed)) is each
                if not each.users and not (is_known and each.sent):
                    if is_known:
                        del self._whole[tenant, hashed]
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

    def _bound(self, uploads: dict[tuple[str, str], Upload], tenant: str) -> None:
        own = [key for key in uploads if key[0] == tenant]
        if len(own) > MAX_FILES:
            self._forget(uploads, own[0])


def _with_bytes(file: File, upload: Upload | None) -> File:
    if upload is None or upload.file is None:
        return file
    return upload.file if file.name is None else attrs.evolve(upload.file, name=file.name)
