"""`warren agents`, and `--agent`."""

from tests.transport.cli.process import Cli, one_line


def test_a_store_without_agents(cli: Cli) -> None:
    """The list says so, and a name that nobody has is refused by each command that takes one."""
    cli.run("run", "hi", "--model", "echo", "--store", "kept")
    listed = cli.run("agents", "--store", "kept")
    assert (listed.out, listed.code) == ("", 0)
    assert "no agents" in listed.err
    assert "there is no agent 'desk' here" in one_line(cli.run("agents", "desk", "--store", "kept"), 2)
    assert "there is no agent 'desk' here" in one_line(cli.run("run", "hi", "--agent", "desk", "--store", "kept"), 2)


def test_what_does_not_go_with_an_agent(cli: Cli) -> None:
    """Instructions are the agent's own; those of the settings file are for other sessions."""
    found = one_line(cli.run("run", "hi", "--agent", "desk", "--system", "Be brief.", "--ephemeral"), 2)
    assert "system_prompt: does not go with `agent`" in found
