"""Pictures of models on the command line: told, saved by their hash, and not lost with a process."""

import hashlib
from base64 import b64encode
from typing import Final

from tests.support.waiting import wait_until
from tests.transport.cli.blobs import stored
from tests.transport.cli.process import SLOW, Cli
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine

PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
SEA: Final = {"data": b64encode(PNG).decode(), "name": "sea.png"}
NOTE: Final = {"data": b64encode(b"lost").decode(), "media_type": "text/plain"}


def test_a_picture_is_told_and_saved(cli: Cli) -> None:
    """`run` tells the command that saves it, as JSON it is in the result, and `sessions show` names it."""
    model = cli.script({"text": "The sea.", "files": [SEA]}, {"text": "Again.", "files": [SEA]})
    hashed = hashlib.sha256(PNG).hexdigest()
    ran = cli.run("run", "draw", "--model", model)
    assert ran.out == "The sea.\n"
    (line,) = (line for line in ran.err.splitlines() if hashed in line)
    told, _, command = line.partition(": warren ")
    assert told == f"image sea.png, {len(PNG)} bytes"
    assert cli.run(*command.replace("FILE", "sea.png").split()).code == 0
    assert (cli.folder / "sea.png").read_bytes() == PNG
    about = {"media_type": "image/png", "sha256": hashed, "size": len(PNG), "name": "sea.png"}
    again = cli.run("resume", "last", "again", "--output", "json")
    assert again.data["attachments"] == [about]
    assert f"[image sea.png: image/png, {len(PNG)} bytes, sha256 {hashed}]" in cli.run("sessions", "show", "last").out


def test_a_picture_of_a_killed_turn_goes_with_the_next_start(cli: Cli) -> None:
    """That of a turn that was stored stays; this one keeps nothing before its end."""
    model = cli.script(
        {"text": "kept", "files": [{"data": b64encode(b"kept").decode()}]},
        {"text": "lost", "files": [NOTE], "tool_calls": [{"name": "datetime_now"}]},
        SLOW,
    )
    assert cli.run("run", "draw", "--model", model, "--builtins").code == 0
    victim = cli.start("resume", "last", "draw again", "--builtins", "--durability", "turn")
    wait_until(lambda: stored(cli) == ["kept", "lost"])
    victim.process.kill()
    victim.end()
    assert cli.run("run", "hello", "--model", "echo").code == 0
    assert stored(cli) == ["kept"]
    assert examine(StoreConfig(cli.folder / ".rkat"), full=True).healthy
