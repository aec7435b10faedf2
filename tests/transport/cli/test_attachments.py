"""The files of prompts of the command line."""

import hashlib
from base64 import b64decode
from typing import Final

from tests.support.waiting import wait_until
from tests.transport.cli.blobs import stored
from tests.transport.cli.process import SLOW, Cli, one_line
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine

PHOTO: Final = b"\x89PNG\r\n\x1a\n\x00\xff"


def test_a_file_of_a_turn_that_was_killed_goes_with_the_next_start(cli: Cli) -> None:
    """That of a turn that was stored stays, and the store is well before and after."""
    for name in ("kept", "lost"):
        (cli.folder / f"{name}.txt").write_text(name)
    model = cli.script({"text": "I see"}, SLOW)
    assert cli.run("run", "look", "--attach", "kept.txt", "--model", model).code == 0
    victim = cli.start("resume", "last", "look again", "--attach", "lost.txt")
    wait_until(lambda: stored(cli) == ["kept", "lost"])
    victim.process.kill()
    victim.end()
    store = StoreConfig(cli.folder / ".rkat")
    assert examine(store, full=True).healthy
    assert cli.run("run", "hello", "--model", "echo").code == 0
    assert stored(cli) == ["kept"]
    assert examine(store, full=True).healthy


def test_a_session_tells_its_files_and_gives_them_back(cli: Cli) -> None:
    """As text and as JSON by name, type, size and hash; the bytes come by the hash, from this session alone."""
    (cli.folder / "photo.png").write_bytes(PHOTO)
    hashed = hashlib.sha256(PHOTO).hexdigest()
    assert cli.run("run", "other").code == 0
    assert cli.run("run", "look", "--attach", "photo.png").code == 0
    line = f"user:\nlook\n[image photo.png: image/png, {len(PHOTO)} bytes, sha256 {hashed}]\n"
    assert line in cli.run("sessions", "show", "last").out
    about = {"media_type": "image/png", "sha256": hashed, "size": len(PHOTO), "name": "photo.png"}
    shown = cli.run("sessions", "show", "last", "--output", "json").data
    (told,) = (each["message"]["attachments"] for each in shown["messages"] if each["message"]["role"] == "user")
    assert told == [about]
    saved = cli.run("sessions", "file", "last", hashed, "-o", "again.png")
    assert (saved.code, saved.out) == (0, f"again.png: {len(PHOTO)} bytes\n")
    with (cli.folder / "piped.png").open("wb") as piped:
        assert cli.run("sessions", "file", "last", hashed, stdout=piped).code == 0
    assert {(cli.folder / name).read_bytes() for name in ("again.png", "piped.png")} == {PHOTO}
    data = cli.run("sessions", "file", "last", hashed, "--output", "json").data
    assert (data["attachment"], b64decode(data["data"])) == (about, PHOTO)
    first, _ = (
        each["session_id"] for each in reversed(cli.run("sessions", "list", "--output", "json").data["sessions"])
    )
    refused = "Error: sha256: is that of no attachment of the session"
    assert one_line(cli.run("sessions", "file", first, hashed), 2).startswith(refused)
    nowhere = one_line(cli.run("sessions", "file", "last", hashed, "--to", "no/photo.png"), 2)
    assert nowhere.startswith("Error: to: no/photo.png cannot be written: No such file")
