"""Files that come ahead of their prompts: pieces, bounds, and who may use them. No I/O."""

from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import Any

import pytest

from warren.base.errors import CapacityExceededError, InvalidParamsError
from warren.conversation.attachments import File
from warren.settings.config import Limits
from warren.transport.rpc.params import PutFile
from warren.transport.rpc.shares import Shares
from warren.transport.rpc.uploads import IDLE, MAX_FILES, Room, Uploads

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
HASH = sha256(PNG).hexdigest()
MOST = 100


def room_of(most: int, *, clock: Callable[[], float] = monotonic, tenant_share: float = 1) -> Room:
    """Make a room for so many bytes; a tenant and a principal may have all of them unless told otherwise."""
    limits = Limits(tenant_share=tenant_share, principal_share=1)
    return Room(Shares("files", 10_000, limits), Shares("bytes of files that wait", most, limits), clock)


def put(uploads: Uploads, data: bytes = PNG, tenant: str = "acme", **more: Any) -> Any:
    """Send a piece."""
    return uploads.put((tenant, "ann"), PutFile(data, **more), MOST)


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
    assert room.size == 3
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


def announced(uploads: Uploads, tenant: str, **more: Any) -> None:
    """Begin files of 50 bytes, and send one byte each."""
    for number in range(8):
        put(uploads, b"x", tenant, size=50, upload_id=str(number), **more)


def test_only_what_has_come_takes_room() -> None:
    """A tenant that announces much, and sends a byte of it now and then, keeps no other one out."""
    now = 0.0
    room = room_of(100, clock=lambda: now)
    greedy, other = Uploads(room), Uploads(room)
    announced(greedy, "greedy")
    assert put(other).attachment.sha256 == HASH
    assert room.size == 8 + 48


def test_the_tenant_that_has_most_gives_way_to_one_that_has_less() -> None:
    """Its oldest file first; one that has as much is refused, and told nothing of the files of others."""
    room = room_of(100)
    greedy, other = Uploads(room), Uploads(room)
    for letter in b"abcd":
        put(greedy, bytes([letter]) * 25, "greedy", upload_id=str(letter))
    put(other)
    assert room.size == 98
    with greedy.lent("greedy", [File(sha256=sha256(bytes([each]) * 25).hexdigest()) for each in b"abcd"]) as files:
        assert [each.data is None for each in files] == [True, True, False, False]
        with pytest.raises(CapacityExceededError, match="no room for more files") as caught:  # prompts run with them
            put(other, b"more", upload_id="more")
    assert not any(number in str(caught.value) for number in ("98", "50"))
    put(greedy, bytes(9) + b"x" * 41, "greedy", size=90, upload_id="new")
    with pytest.raises(CapacityExceededError):
        put(greedy, b"x" * 40, "greedy", size=90, offset=50, upload_id="new")
    assert sent(other).data == PNG


def test_a_tenant_has_its_bound_while_there_is_room() -> None:
    """Its prompts may run with its files for long: others have room beside it even then."""
    room = room_of(150, tenant_share=100 / 150)
    first, second, other = Uploads(room), Uploads(room), Uploads(room)
    put(first, b"a" * 60)
    with pytest.raises(
        CapacityExceededError, match="the tenant 'acme' has 100 bytes of files that wait, as many as it may"
    ) as caught:
        put(second, b"b" * 50)
    assert (caught.value.cause, caught.value.retryable) == ("uploads", True)
    put(second, b"b" * 40)
    hashes = [sha256(each).hexdigest() for each in (b"a" * 60, b"b" * 40)]
    with first.lent("acme", (File(sha256=hashes[0]),)), second.lent("acme", (File(sha256=hashes[1]),)):
        put(other, tenant="other")
    assert room.size == 48


def test_a_slow_file_gives_way() -> None:
    """Also if a byte of it comes now and then: to others of its own tenant."""
    now = 0.0
    room = room_of(100, clock=lambda: now)
    slow, other = Uploads(room), Uploads(room)
    put(slow, b"x" * 60, size=90)
    for offset in range(60, 65):
        with pytest.raises(CapacityExceededError):
            put(other)
        now += 14
        put(slow, b"x", size=90, offset=offset)
    assert put(other).attachment.sha256 == HASH
    with pytest.raises(InvalidParamsError, match="must be 0: nothing of this file is here"):
        put(slow, b"x", size=90, offset=65)


def test_files_are_counted_for_each_tenant() -> None:
    """Another node is one client for all of them."""
    uploads = Uploads(Room())
    put(uploads)
    put(uploads, b"half", size=9, upload_id="half")
    for number in range(MAX_FILES + 1):
        put(uploads, b"%d" % number, "other", upload_id=str(number))
        put(uploads, b"%d" % number, "other", upload_id=f"half {number}", size=9)
    assert put(uploads, b"whole", size=9, offset=4, upload_id="half").attachment.media_type == "text/plain"
    assert sent(uploads).data == PNG
    with uploads.lent("other", [File(sha256=sha256(b"%d" % number).hexdigest()) for number in (0, 1)]) as files:
        assert [each.data for each in files] == [None, b"1"]


def test_each_of_two_clients_uses_the_file_that_it_has_sent() -> None:
    """Callers of one tenant at another node, with the same file: the one that is faster leaves it to the other."""
    room = Room()
    uploads = Uploads(room)
    put(uploads, name="a.png")
    put(uploads, name="b.png")
    assert room.size == 48
    assert sent(uploads, name="a.png").name == "a.png"
    assert sent(uploads).data == PNG
    assert room.size == 0
    put(uploads)
    with uploads.lent("acme", (File(sha256=HASH),)):
        put(uploads)
    assert sent(uploads).data == PNG
    assert sent(uploads) == File(sha256=HASH)
    put(uploads)
    with uploads.lent("acme", (File(sha256=HASH),)) as (file,):
        for number in range(MAX_FILES):
            put(uploads, b"%d" % number)
        assert file.data == PNG
        assert room.size == 48 + 190
    assert room.size == 190


def test_files_that_nobody_uses_give_way() -> None:
    """To those of any client, once nothing was done with them for a while; not while a prompt runs with them."""
    now = 0.0
    room = room_of(100, clock=lambda: now)
    first, second = Uploads(room), Uploads(room)
    put(first)
    put(first, b"h" * 40, size=41)
    now = IDLE
    with pytest.raises(CapacityExceededError, match="there is no room") as caught:
        put(second, b"a" * 30, size=31)
    assert (caught.value.cause, caught.value.retryable) == ("uploads", True)
    with first.lent("acme", (File(sha256=HASH),)) as (file,):
        now += 1
        put(second, b"a" * 30, size=31)
        assert file.data == PNG
        with pytest.raises(InvalidParamsError, match="must be 0: nothing of this file is here"):
            put(first, b"rest", offset=40, size=41)
    assert room.size == 30
    for number in range(MAX_FILES + 1):
        now += 2 * IDLE
        put(first, bytes([65 + number % 26]), upload_id=str(number), size=2)
    assert room.size <= 100
