"""`warren triggers`, from making one to removing it."""

import re

from tests.transport.cli.process import Cli, one_line


def test_a_trigger_is_made_changed_and_removed(cli: Cli) -> None:
    """Its secret is printed when it is made, and when it is given a new one; the end of an id names it."""
    session_id = cli.run("run", "hello", "--store", "kept", "-m", "echo", "--output", "json").data["session_id"]
    made = cli.run("triggers", "create", "look at {body}", "--session", "last", "--store", "kept")
    trigger_id, secret = made.out.splitlines()
    assert secret.startswith("whsec_")
    assert made.err == f"active, takes standard calls at /triggers/{trigger_id}\n"
    (line,) = cli.run("triggers", "list", "--store", "kept").out.splitlines()
    assert line.split("\t") == [trigger_id, "active", "standard", "", session_id, "look at {body}"]
    renewed = cli.run("triggers", "change", trigger_id[-8:], "--rotate-secret", "--pause", "--store", "kept")
    assert renewed.err.startswith("paused, ")
    assert renewed.out.splitlines()[1] not in ("", secret)
    kept = cli.run("triggers", "change", trigger_id[-8:], "--prompt", "{event}", "--resume", "--store", "kept")
    assert kept.out == f"{trigger_id}\n"
    assert cli.run("triggers", "delete", trigger_id[-8:], "--store", "kept").out == f"{trigger_id}: deleted\n"
    assert "no trigger has an id" in one_line(cli.run("triggers", "delete", trigger_id[-8:], "--store", "kept"), 2)
    assert cli.run("triggers", "list", "--store", "kept").out == ""


def test_a_secret_of_your_own(cli: Cli) -> None:
    """It comes from a file or the standard input; a bad one is refused without being repeated."""
    cli.run("run", "hello", "--store", "kept", "-m", "echo")
    (cli.folder / "secret.txt").write_text("swordfish\nmore\n", encoding="utf-8")
    made = cli.run(
        *("triggers", "create", "x{body}", "--scheme", "github", "--secret-file", "secret.txt", "--store", "kept"),
        *("--label", "by=hook", "--output", "json"),
    )
    assert (made.data["secret"], made.data["new_session"]) == ("swordfish", {"labels": {"by": "hook"}})
    arguments = (
        "triggers",
        "change",
        made.data["trigger_id"],
        "--rotate-secret",
        "--secret-file",
        "-",
        "--store",
        "kept",
    )
    assert cli.run(*arguments, stdin=b"halibut\n").out.splitlines()[1] == "halibut"
    bad = one_line(cli.run("triggers", "create", "x", "--secret-file", "secret.txt", "--store", "kept"), 2)
    assert re.search(r"secret.* must be whsec_", bad)
    assert "swordfish" not in bad
    unknown = one_line(cli.run("triggers", "create", "look at {bodies}", "--store", "kept"), 2)
    assert "{bodies}" in unknown
    missing = cli.run("triggers", "create", "x", "--secret-file", "nothing.txt", "--store", "kept")
    assert (missing.code, missing.out) == (2, "")
    assert "'nothing.txt': No such file" in missing.err
