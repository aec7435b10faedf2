"""Nodes that are killed, stopped and cut off under load: no acknowledged turn is lost or taken twice."""

import json
import signal
from typing import Any

import pytest

from tests.support.postgres import database
from tests.transport.cli.process import Cli

FAULTS = ("kill", "stop", "partition", "blip", "links", "answers")


def failed_over(cli: Cli, *arguments: str, seconds: float = 120) -> Any:
    """Run `warren load failover`, and return its result. All promises were kept, and every fault got over."""
    running = cli.start("load", "failover", *arguments, "--output", "json")
    try:
        out, err = running.process.communicate(timeout=seconds)
    finally:
        running.process.send_signal(signal.SIGTERM)  # its nodes end with it
    assert running.process.returncode == 0, (out, err)
    result = json.loads(out)
    assert result["good"]
    assert result["verdict"]["acknowledged"] > 0
    return result


def test_every_kind_of_fault_is_got_over(cli: Cli) -> None:
    """On a database: three nodes, users at all of them, and followers that get each stored event once."""
    with database() as url:
        result = failed_over(cli, "--store", url, "--sessions", "6", "--rounds", "6", "--lease", "2s")
    assert [each["fault"] for each in result["faults"]] == list(FAULTS)
    assert all(each["sessions"] for each in result["faults"])


@pytest.mark.soak
@pytest.mark.time_limit(7200)
@pytest.mark.parametrize(("kind", "least"), [("database", 100), ("files", 20)])
def test_many_faults_are_got_over(cli: Cli, kind: str, least: int, soak_seconds: float) -> None:
    """A hundred on a database, and more if there is time."""
    rounds = max(least, int(soak_seconds / 5))
    arguments = ("--rounds", f"{rounds}", "--lease", "2s")
    if kind == "files":
        failed_over(cli, "--store", "store", "--faults", "kill,stop,links", *arguments, seconds=20 * rounds)
        return
    with database() as url:
        failed_over(cli, "--store", url, *arguments, seconds=20 * rounds)


def test_a_run_that_is_ended_leaves_no_node(cli: Cli) -> None:
    """SIGTERM ends its nodes, too."""
    running = cli.start("load", "failover", "--store", "store", "--faults", "kill", "--rounds", "1000")
    running.read_until("kill of load-0", error=True)
    running.signal(signal.SIGTERM)
    assert running.end().code == 130
    assert cli.run("nodes", "list", "--store", "store").err == "no process has the store open\n"


def test_nodes_that_do_not_start_are_an_error(cli: Cli) -> None:
    """One line says which, and how to see why."""
    (cli.folder / "store").write_text("no folder")
    ended = cli.start("load", "failover", "--store", "store", "--faults", "kill").end()
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "node 0 ended at once" in ended.err
