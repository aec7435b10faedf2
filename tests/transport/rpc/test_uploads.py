"""Files that come ahead of their prompts: pieces, bounds, and who may use them. No I/O."""

from hashlib import sha256
from typing import Any

import pytest

from warren.attachments import File
from warren.errors import CapacityExceededError, InvalidParamsError
from warren.transport.rpc.params import PutFile
from warren.transport.rpc.uploads import IDLE, MAX_FILES, Room, Uploads

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
HASH = sha256(PNG).hexdigest()
MOST = 100


def put(uploads: Uploads, data: bytes = PNG, tenant: str = "acme", **more: Any) -> Any:
    """Send a piece."""
    return uploads.put(tenant, PutFile(data, **more), MOST)


def sent(uploads: Uploads, tenant: str = "acme", **more: Any) -> File:
    """Return the file that a prompt with the hash gets."""
    with uploads.lent(tenant, (File(sha256=HASH, **more),)) as (file,):
        return file


def test_a_file_comes_in_pieces_and_goes_with_its_prompt() -> None:
    """Several at once are told apart; a prompt that fails may be tried again, one that is taken uses the file up."""
    room = Room()
    uploads = Uploads(room)
    assert put(uploads, PNG[:10], size=48, upload_id="a").received == 10
    assert put(uploads, b"two", size=9, upload_id="b").attachment is None
    found = put(uploads, PNG[10:], size=48, upload_id="a", offset=10, name="a.png")
    assert (found.received, found.attachment.sha256, found.attachment.media_type) == (48, HASH, "image/png")
    with pytest.raises(RuntimeError), uploads.lent("acme", (File(sha256=HASH),)):
        raise RuntimeError("busy")
    assert sent(uploads, name="b.png") == File(PNG, media_type="image/png", name="b.png")
    assert sent(uploads) == File(sha256=HASH)
    assert room.size == 9
    uploads.close()
    assert room.size == 0


def test_a_file_is_the_tenants_whose_caller_has_sent_it() -> None:
    """Other nodes call for several tenants; a hash tells nothing to another one."""
    uploads = Uploads(Room())
    put(uploads)
    assert sent(uploads, "other") == File(sha256=HASH)
    assert sent(uploads).data == PNG


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"data": bytes(101)}, "$.data"),
        ({"data": b"x", "size": 101}, "$.size"),
        ({"data": b"x", "offset": 1, "size": 9, "upload_id": "new"}, "$.offset"),
        ({"data": b"x", "offset": 5, "size": 9}, "$.offset"),
        ({"data": b"x", "offset": 4, "size": 8}, "$.size"),
        ({"data": b"123456", "offset": 4, "size": 9}, "$.data"),
        ({"data": b""}, "$.data"),
        ({"data": b"\0\1"}, "$.data"),
        ({"data": PNG, "media_type": "image/gif"}, "$.media_type"),
    ],
)
def test_a_bad_piece_is_refused_by_name(more: dict[str, Any], path: str) -> None:
    """And holds no room; the pieces before it stay."""
    room = Room()
    uploads = Uploads(room)
    put(uploads, b"1234", size=9)
    with pytest.raises(InvalidParamsError) as caught:
        put(uploads, **more)
    assert caught.value.path == path
    assert room.size <= 9
    if more.get("offset"):
        assert put(uploads, b"56789", offset=4, size=9).attachment.media_type == "text/plain"


def test_files_that_nobody_uses_give_way() -> None:
    """To those of any client, once nothing was done with them for a while; not while a prompt runs with them."""
    now = 0.0
    room = Room(100, lambda: now)
    first, second = Uploads(room), Uploads(room)
    put(first)
    put(first, b"half", size=40)
    now = IDLE
    with pytest.raises(CapacityExceededError, match="88 bytes of files wait") as caught:
        put(second, b"a", size=30)
    assert (caught.value.cause, caught.value.retryable) == ("uploads", True)
    with first.lent("acme", (File(sha256=HASH),)) as (file,):
        now += 1
        put(second, b"a", size=30)
        assert file.data == PNG
        with pytest.raises(InvalidParamsError, match="must be 0: nothing of this file is here"):
            put(first, b"rest", offset=4, size=40)
    assert room.size == 30
    for number in range(MAX_FILES + 1):
        now += 2 * IDLE
        put(first, bytes([65 + number % 26]), upload_id=str(number), size=2)
    assert room.size <= 100
