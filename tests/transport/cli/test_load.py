"""`warren load` as a user meets it."""

import contextlib
import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.transport.cli.process import WITHOUT, Cli, one_line
from tests.transport.load.results import BROKEN, made
from warren.storage.sqlite.file import FILE_NAME
from warren.transport.cli.load.running import STOPPED, told
from warren.transport.load.result import CUT_SHORT, to_json


def test_a_run_writes_its_result_and_its_report(cli: Cli) -> None:
    """Figures on stdout, JSON and HTML in files, sessions in the store; the run can be compared with itself."""
    options = ("--sessions", "5", "--turns", "2", "--latency", "1ms", "--mix", "tools=0.5", "--store", "store")
    ended = cli.run("load", *options, "--json", "a.json", "--html", "a.html")
    assert ended.code == 0, ended
    assert ended.out.endswith("checked 5 sessions: no violations\n")
    result = json.loads((cli.folder / "a.json").read_bytes())
    assert (result["figures"]["turns"], result["violation_count"]) == (10, 0)
    assert (cli.folder / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(cli.run("sessions", "list", "--store", "store").out.splitlines()) >= 5
    same = cli.run("load", "diff", "a.json", "a.json", "--fail-over", "1")
    assert same.code == 0
    assert "turns/s" in same.out


MIX = "interrupts=0.3,busy=0.3,disconnects=0.3"


def test_a_mix_happens_unless_the_answers_are_too_fast(cli: Cli) -> None:
    """The events planned for the middle of turns happen; a run of too fast answers, in which it cannot, has failed."""
    ended = cli.run("load", "--sessions", "6", "--turns", "4", "--mix", MIX, "--json", "a.json")
    figures = json.loads((cli.folder / "a.json").read_bytes())["figures"]
    assert (ended.code, [figures[name] > 0 for name in ("interrupted", "busy", "disconnects")]) == (0, [True] * 3)
    fast = ("--latency", "0", "--chunks", "1", "--chunk-delay", "0", "--html", "b.html")
    ended = cli.run("load", "--sessions", "6", "--turns", "4", "--mix", MIX, *fast)
    assert ended.code == 1
    assert [line.split(":")[0] for line in ended.out.splitlines() if line.startswith("NOT TRIED")] == [
        f"NOT TRIED {name}=0.3" for name in ("interrupts", "busy", "disconnects")
    ]
    assert "--chunk-delay" in ended.out
    page = (cli.folder / "b.html").read_text(encoding="utf-8")
    assert "<b>Not tried:</b> interrupts=0.3" in page
    assert "0 violations: every promise was kept" in page


def test_figures_have_units(cli: Cli) -> None:
    """Times say of what, in the figures and in a comparison; counts need none."""
    ended = cli.run("load", "--sessions", "2", "--turns", "1", "--latency", "1ms", "--json", "a.json")
    units = {line[:36].rstrip(): line[50:].strip() for line in ended.out.splitlines()}
    assert (units["seconds"], units["latency p99"], units["service time mean"]) == ("s", "ms", "ms")
    assert (units["turns"], units["turns/s"]) == ("", "")
    compared = cli.run("load", "diff", "a.json", "a.json").out
    assert "\nlatency p99 (ms) " in compared
    assert "\nseconds (s) " in compared


@pytest.mark.parametrize("missing", ["hdrh", "wsproto"])
@pytest.mark.parametrize("args", [(), ("diff", "a.json", "b.json")])
def test_without_its_extra(cli: Cli, missing: str, args: tuple[str, ...]) -> None:
    """The command says which extra it needs."""
    line = one_line(cli.run("load", *args, python=("-c", WITHOUT, missing)), 1)
    assert line == "Error: warren load needs the extra `load`: pip install 'warren[load]'\n"


def test_a_run_that_is_stopped_tells_what_there_was(cli: Cli) -> None:
    """Ctrl-C ends no turn and loses no figure: its sessions are checked, its files are written."""
    options = ("--sessions", "3", "--turns", "100000", "--latency", "20ms", "--store", "store", "--json", "a.json")
    running = cli.start("load", *options)
    file = cli.folder / "store" / FILE_NAME
    wait_until(lambda: file.exists() and _messages(file))
    running.signal(signal.SIGINT)
    ended = running.end()
    assert ended.code == STOPPED, ended
    assert "no more turns begin" in ended.err
    assert ended.out.endswith("checked 3 sessions: no violations\n")
    result = json.loads((cli.folder / "a.json").read_bytes())
    assert (result["figures"]["sessions"], result["warnings"]) == (3, [CUT_SHORT])
    assert 0 < result["figures"]["turns"] < 300_000


def _messages(file: Path) -> int:
    with closing(sqlite3.connect(file)) as db, contextlib.suppress(sqlite3.DatabaseError):
        return int(db.execute("SELECT count(*) FROM messages").fetchone()[0])
    return 0


def test_no_file_is_left_by_a_run_that_had_nothing_to_measure(cli: Cli) -> None:
    """That it can be written is tried, and leaves no trace."""
    (cli.folder / "link.json").symlink_to("target.json")
    for name in ("a.json", "link.json"):
        assert cli.run("load", "ws://127.0.0.1:1", "--sessions", "1", "--json", name).code == 1
    assert not (cli.folder / "a.json").exists()
    assert (cli.folder / "link.json").is_symlink()


def test_the_result_can_go_to_stdout(cli: Cli) -> None:
    """As JSON alone."""
    ended = cli.run("load", "run", "--sessions", "2", "--turns", "1", "--latency", "0", "--output", "json")
    assert ended.data["figures"]["turns"] == 2


def test_a_regression_ends_with_1(cli: Cli) -> None:
    """And is named on stderr."""
    (cli.folder / "a.json").write_bytes(to_json(made()))
    (cli.folder / "b.json").write_bytes(to_json(made(figures={"latency p99": 40.0})))
    ended = cli.run("load", "diff", "a.json", "b.json", "--fail-over", "50")
    assert ended.code == 1
    assert "latency p99 is worse by 100 %" in ended.err
    assert cli.run("load", "diff", "a.json", "b.json").code == 0
    told = cli.run("load", "diff", "a.json", "b.json", "--fail-over", "50", "--output", "json")
    assert told.data["worse"] == ["latency p99"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--rate", "5", "--arrival", "closed"), "rate"),
        (("--mix", "tools=2"), "tools"),
        (("--mix", "tolls=1"), "'tolls' is unknown"),
        (("--mix", "tools=many"), "is not a number"),
        (("ws://127.0.0.1:1", "--bad-clients", "idle=few"), "is not a whole number"),
        (("ws://127.0.0.1:1", "--bad-clients", "idle=-1"), "idle"),
        (("--bad-clients", "idle=1"), "bad clients need a gateway"),
        (("--scenario", "siege"), "bad clients need a gateway"),
        (("--prompt", "long"), "is not a size"),
        (("--arrival", "soak"), "duration"),
        (("ws://127.0.0.1:1", "--latency", "1s"), "--latency is for runs without URL"),
        (("ftp://127.0.0.1",), "is not like ws://"),
        (("diff", "no.json", "no.json"), "No such file"),
    ],
)
def test_a_mistake_is_one_line(cli: Cli, args: tuple[str, ...], said: str) -> None:
    """That names it, after how the command is used where it is the usage that is wrong."""
    ended = cli.run("load", *args)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err.splitlines()[-1]
    assert len(ended.err.splitlines()) in (1, 4), ended.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("ws://127.0.0.1:1", "--sessions", "2"), "no session could be created"),
        (("--json", "no/such/folder.json"), "cannot write no/such/folder.json"),
    ],
)
def test_what_cannot_be_done_is_one_line(cli: Cli, args: tuple[str, ...], said: str) -> None:
    """Before any load."""
    assert said in one_line(cli.run("load", *args), 1)


def test_a_violation_is_named() -> None:
    """On the last lines of what is printed."""
    assert "VIOLATION session session-<7>: order: a turn began within a turn\n" in told(BROKEN)
    assert told(BROKEN).endswith("1 violations\n")
