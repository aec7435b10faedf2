"""`warren agents`, and `--agent`."""

import json
from typing import Final

import pytest

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


SETTINGS: Final = """\
model = "echo"
agent_folders = ["more"]

[agents.desk]
description = "Complaints"
instructions_file = "desk.md"
output_schema_file = "refund.json"
temperature = 0.5
tenants = ["default"]

[agents.desk.budget]
max_steps = 5

[agents.theirs]
tenants = ["acme"]
"""


def written(cli: Cli, settings: str = SETTINGS) -> Cli:
    """Write a file of settings with what it names."""
    folder = cli.folder / ".rkat"
    (folder / "more").mkdir(parents=True)
    (folder / "desk.md").write_text("Settle it.\n")
    (folder / "refund.json").write_text('{"type": "object"}')
    (folder / "more" / "clerk.md").write_text("---\ndescription: Looks up\ntools: look\n---\nLook it up.\n")
    (folder / "config.toml").write_text(settings)
    return cli


def test_agents_of_the_settings(cli: Cli) -> None:
    """They are listed without a store, sessions are made of them, and other tenants do not know them."""
    written(cli)
    listed = cli.run("agents")
    lines = [line.split("\t") for line in listed.out.splitlines()]
    assert [(each[0], each[5]) for each in lines] == [("clerk", "Looks up"), ("desk", "Complaints")]
    assert not (cli.folder / ".rkat" / "sessions.sqlite3").exists()
    shown = json.loads(cli.run("agents", "desk", "--output", "json").out)
    assert shown["spec"]["instructions"] == "Settle it."
    assert shown["spec"]["options"]["output_schema"] == {"type": "object"}
    assert cli.run("run", "hi", "--agent", "clerk").out == "hi\n"
    assert cli.run("sessions", "list", "--agent", "desk").out == ""
    assert cli.run("sessions", "list", "--agent", "clerk").out.split("\t")[6] == "clerk"
    assert "there is no agent 'theirs' here" in one_line(cli.run("run", "hi", "--agent", "theirs"), 2)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ('[agents.desk]\ninstruction = "x"', "agents.desk.instruction: is not a known field; did you mean"),
        ("[agents.desk]\ntemperature = 9", "agents.desk.temperature: must be"),
        ('[agents.desk]\ninstructions_file = "gone.md"', "agents.desk.instructions_file: gone.md: No such file"),
        ('[agents.desk]\noutput_schema_file = "desk.md"', "agents.desk.output_schema_file: desk.md: Expecting value"),
        ('[agents.desk]\ninstructions = "x"\ninstructions_file = "desk.md"', "does not go with `instructions`"),
        ('[agents.desk]\ntools = ["a", "a"]', "agents.desk.tools[1]: is another tool named 'a'"),
        ('[agents.desk]\npeer = {name = "x"}', "agents.desk.peer: is the name of one session"),
        ('[agents.desk]\ntenants = ["/"]', "agents.desk.tenants[0]: cannot be the name of a tenant"),
        ('[agents."a b"]', "agents.a b: the name must be"),
        ('agent_folders = ["gone"]', "agent_folders[0]: there is no folder gone"),
        ('agent_folders = "more"', "agent_folders: must be a list of folders"),
        ('[[agent_folders]]\npaths = "x"', "agent_folders[0].path"),
    ],
)
def test_bad_agents_of_the_settings(cli: Cli, bad: str, problem: str) -> None:
    """The error names the file, the line and the key, in one line."""
    found = one_line(written(cli, bad).run("agents"), 2)
    assert problem in found
    assert "config.toml:" in found
