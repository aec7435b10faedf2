"""Inputs that wait for a session, from the command line."""

from tests.transport.cli.process import Cli, one_line


def test_text_is_injected_listed_and_read_by_the_next_turn(cli: Cli) -> None:
    """It waits across processes, is taken once for one key, and is nobody's prompt."""
    cli.run("run", "hello", "-m", "echo")
    for _ in range(2):
        done = cli.run("sessions", "inject", "last", "--source", "ci", "--key", "b81", stdin=b"The build is green.\n")
        assert (done.code, done.out.startswith("injected ")) == (0, True), done.err
    (row,) = cli.run("sessions", "inputs", "last").out.splitlines()
    assert row.split("\t")[1::2] == ["context", "ci"]
    assert row.endswith("\tThe build is green.")
    (data,) = cli.run("sessions", "inputs", "last", "--output", "json").data["inputs"]
    assert (data["kind"], data["source"], data["text"]) == ("context", "ci", "The build is green.")
    taken = cli.run("resume", "last", "and?", "-m", "echo")
    assert taken.out == "and?\n"
    assert 'ci says "The build is green."\n' in taken.err
    assert "\nfrom ci:\nThe build is green.\n" in cli.run("sessions", "show", "last").out
    assert cli.run("sessions", "inputs", "last").err == "nothing waits\n"


def test_what_waits_can_be_taken_back(cli: Cli) -> None:
    """It is named by its id; one that does not wait is an error."""
    cli.run("run", "hello", "-m", "echo")
    cli.run("sessions", "inject", "last", "one")
    cli.run("sessions", "inject", "last", "two")
    one, two = cli.run("sessions", "inputs", "last").out.splitlines()
    left = cli.run("sessions", "inputs", "last", "--withdraw", one.split("\t")[0])
    assert left.out == f"{two}\n"
    assert "input_id" in one_line(cli.run("sessions", "inputs", "last", "--withdraw", one.split("\t")[0]), 2)


def test_nothing_is_injected_where_there_is_nothing(cli: Cli) -> None:
    """Without a store, and without words, it says so in one line."""
    assert "SESSION_NOT_FOUND" in one_line(cli.run("sessions", "inject", "last", "x"), 1)
    cli.run("run", "hello", "-m", "echo")
    assert "prompt: must not be empty" in one_line(cli.run("sessions", "inject", "last", "  "), 2)
