"""Files that are read again, and connections that end with their tokens."""

import os
from pathlib import Path

import pytest
import trio

from tests.support.waiting import until
from warren.base.errors import InvalidParamsError
from warren.base.principals import Principal
from warren.transport.access.logins import Authenticator, Login, key_of
from warren.transport.access.watched import LOOK, Stays, WatchedFile


def words(data: bytes) -> bytes:
    """Return a file's content; some of it is bad."""
    if data.startswith(b"bad"):
        raise InvalidParamsError(f"$.file: is {data.decode()}", path="$.file")
    return data


def put(path: Path, data: bytes) -> None:
    """Put another file in the place of one."""
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def test_a_file_is_read_when_it_changes(tmp_path: Path) -> None:
    """Also if neither its time nor its size tells: another file in its place is another one."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    file = WatchedFile(path, words, "$.file")
    assert file.load() == b"one"
    assert file.changed() is None
    before = path.stat()
    put(path, b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.changed() == b"two"
    assert file.changed() is None


def test_a_bad_version_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, and the next good one counts."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    file = WatchedFile(path, words, "$.file")
    file.load()
    put(path, b"bad")
    assert [file.changed(), file.changed()] == [None, None]
    assert file.problem == f"$.file: is bad ({path})"
    assert caplog.text.count("is bad") == 1
    path.unlink()
    assert [file.changed(), file.changed()] == [None, None]
    assert "No such file" in str(file.problem)
    assert caplog.text.count("No such file") == 1
    put(path, b"three")
    assert file.changed() == b"three"
    assert file.problem is None


def test_a_first_version_has_to_be_good(tmp_path: Path) -> None:
    """The error has the file's name."""
    path = tmp_path / "file"
    with pytest.raises(InvalidParamsError, match=str(path)):
        WatchedFile(path, words, "$.file").load()
    path.write_bytes(b"bad")
    with pytest.raises(InvalidParamsError, match=str(path)):
        WatchedFile(path, words, "$.file").load()


async def test_a_file_is_followed(tmp_path: Path) -> None:
    """Each version is passed on within a moment."""
    path, seen = tmp_path / "file", list[bytes]()
    path.write_bytes(b"one")
    file = WatchedFile(path, words, "$.file")
    file.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.follow, seen.append)
        put(path, b"two")
        await until(lambda: seen == [b"two"])
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_connections_end_with_their_tokens() -> None:
    """Each within a look, once, and none that has gone or may stay."""
    logins = {key_of(name): Login(Principal(name=name), key_of(name)) for name in "abc"}
    authenticator, ended = Authenticator(dict(logins)), list[str]()
    stays = Stays(authenticator)
    a, b, c = logins.values()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stays.run)
        with stays.ends(a, lambda: ended.append("a")), stays.ends(b, lambda: ended.append("b")):
            with stays.ends(c, lambda: ended.append("c")):
                pass
            await trio.sleep(5)
            assert ended == []
            authenticator.tokens = {b.key: b}
            await trio.sleep(1.5 * LOOK)  # a look is at an unknown place of the clock
            assert ended == ["a"]
            await trio.sleep(5)
        assert ended == ["a"]
        nursery.cancel_scope.cancel()
