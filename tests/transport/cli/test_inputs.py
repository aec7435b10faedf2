"""Inputs that wait for a session, from the command line."""

import signal

from tests.transport.cli.process import Cli, one_line


def test_text_is_injected_listed_and_read_by_the_next_turn(cli: Cli) -> None:
    """It waits across processes, is taken once for one key, and is nobody's prompt."""
    cli.run("run", "hello", "-m", "echo")
    for _ in range(2):
        done = cli.run("sessions", "inject", "last", "--source", "ci", "--key", "b81", stdin=b"The build is green.\n")
        assert (done.code, done.out.startswith("injected ")) == (0, True), done.err
    (row,) = cli.run("sessions", "inputs", "last").out.splitlines()
    _, kind, _, *rest = row.split("\t")
    assert (kind, rest) == ("context", ["ci", "The build is green.", ""])
    (data,) = cli.run("sessions", "inputs", "last", "--output", "json").data["inputs"]
    assert (data["kind"], data["source"], data["text"]) == ("context", "ci", "The build is green.")
    taken = cli.run("resume", "last", "and?", "-m", "echo")
    assert taken.out == "and?\n"
    assert 'ci says "The build is green."\n' in taken.err
    assert "\nfrom ci:\nThe build is green.\n" in cli.run("sessions", "show", "last").out
    assert cli.run("sessions", "inputs", "last").err == "nothing waits\n"


def test_what_waits_can_be_taken_back(cli: Cli) -> None:
    """It is named by its id, or the end of it; one that does not wait is an error."""
    cli.run("run", "hello", "-m", "echo")
    for text in ("one", "two", "three"):
        cli.run("sessions", "inject", "last", text)
    one, two, three = cli.run("sessions", "inputs", "last").out.splitlines()
    whole, end = one.split("\t")[0], two.split("\t")[0][-8:]
    assert cli.run("sessions", "inputs", "last", "--withdraw", whole).out == f"{two}\n{three}\n"
    assert cli.run("sessions", "inputs", "last", "--withdraw", end).out == f"{three}\n"
    for name in (whole, end, "x"):
        assert "input_id" in one_line(cli.run("sessions", "inputs", "last", "--withdraw", name), 2)


def test_a_prompt_for_later_has_its_time(cli: Cli) -> None:
    """It waits in the inbox after the command has gone, and can be taken back."""
    cli.run("run", "hello", "-m", "echo")
    running = cli.start("resume", "last", "later", "--not-before", "2099-03-01T09:30:00Z", "-m", "echo")
    assert "the prompt waits until" in running.read_until("\n", error=True)
    while not (shown := cli.run("sessions", "inputs", "last")).out:
        pass
    running.signal(signal.SIGINT)
    assert running.end().code == -signal.SIGINT
    assert shown.out.split("\t")[1::3] == ["queue", "later"]
    assert "2099-03-01" in shown.out.split("\t")[-1]
    left = cli.run("sessions", "inputs", "last", "--withdraw", shown.out.split("\t")[0][-8:])
    assert (left.code, left.out, left.err) == (0, "", "nothing waits\n")


def test_nothing_is_injected_where_there_is_nothing(cli: Cli) -> None:
    """Without a store, and without words, it says so in one line."""
    assert "SESSION_NOT_FOUND" in one_line(cli.run("sessions", "inject", "last", "x"), 1)
    cli.run("run", "hello", "-m", "echo")
    assert "prompt: must not be empty" in one_line(cli.run("sessions", "inject", "last", "  "), 2)
