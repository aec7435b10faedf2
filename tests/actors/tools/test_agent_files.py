"""Agents in files: the forms that people have them in, what has no meaning here, and what is refused."""

import logging
from pathlib import Path
from typing import Final

import pytest

from warren.actors.tools.agent_files import OWN, with_agents_of_folders
from warren.agents.agent import Agent
from warren.base.errors import InvalidParamsError
from warren.base.principals import Principal
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.settings.config import AgentFolder, Config
from warren.transport.embed import open_supervisor

# As `/agents` of Claude Code writes them: the description is no YAML, with escaped ends of lines and colons.
GENERATED: Final = r"""---
name: code-reviewer
description: Use it when code was written.\n\n<example>\nContext: Code.\nuser: "Go"\nassistant: "Done: I go"\n</example>
tools: Glob, Grep, LS, Read, WebFetch, TodoWrite, Bash, mcp__linear__get_issue
model: sonnet
color: red
---

You are a senior reviewer.

---

Focus on what matters.
"""
BY_HAND: Final = """---
name: debugger
description: Debugging specialist. Use proactively when a test fails.
  user: "it fails"
tools: Read, Edit, Bash(git diff:*), Grep
---
You find causes.
"""
LISTED: Final = """---
name: planner
description: >
  Plans the work
  and nothing else.
tools:
  - Read
  - look_up
model: claude-opus-4-5
budget: {max_steps: 20}
approvals:
  shell: deny
temperature: 0.2
permissionMode: plan
disallowedTools: Write
---
Plan.
"""
WITHOUT_TOOLS: Final = "---\r\ndescription: All of them\r\ndisallowedTools: Bash, Write\r\n---\r\nHelp.\r\n"
SKILL: Final = (
    "---\nname: pdf-filler\ndescription: Fills forms\nlicense: MIT\nallowed-tools: Read, Write\n---\nFill them.\n"
)


def folder(path: Path, files: dict[str, str]) -> Config:
    """Return settings with a folder of these files."""
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(text.encode())
    return Config(agent_folders=(AgentFolder(path),))


def agents(config: Config) -> dict[str, Agent]:
    """Return the agents of settings, by name."""
    return {each.name: each for each in with_agents_of_folders(config).agents}


def one(path: Path, text: str) -> Agent:
    """Return the agent of a file."""
    (found,) = agents(folder(path, {"one.md": text})).values()
    return found


def test_an_agent_that_was_generated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its description becomes a line, its tools have our names, and its model is the runtime's."""
    found = one(tmp_path, GENERATED)
    assert (found.name, found.model) == ("code-reviewer", ())
    assert found.description == (
        'Use it when code was written. <example> Context: Code. user: "Go" assistant: "Done: I go" </example>'
    )
    assert found.instructions == "You are a senior reviewer.\n\n---\n\nFocus on what matters."
    assert found.tools == (
        *("list_files", "search_files", "read_file", "fetch", "shell"),
        *("get_issue", "linear_get_issue"),
    )
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}/one.md:4: tools: there is no TodoWrite here; the agent does without"
    ]


def test_a_tool_with_limits_of_its_own_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would have no limits here."""
    found = one(tmp_path, BY_HAND)
    assert found.tools == ("read_file", "edit_file", "search_files")
    assert found.description == 'Debugging specialist. Use proactively when a test fails. user: "it fails"'
    assert "one.md:5: tools: there is no Bash(git diff:*) here" in caplog.text


def test_an_agent_with_options(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lists, tables and options of sessions are as they are in the settings; a key without a meaning is named."""
    found = one(tmp_path, LISTED)
    assert (found.name, found.description) == ("planner", "Plans the work and nothing else.")
    assert (found.tools, found.model) == (("read_file", "look_up"), ("claude-opus-4-5",))
    assert (found.budget, found.gates) == (Budget(max_steps=20), Gates(shell="deny"))
    assert found.options.temperature == 0.2
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}/one.md:14: permissionMode: is not known here and has no effect"
    ]


def test_an_agent_without_tools_has_those_of_claude(tmp_path: Path) -> None:
    """All that have a name there but those that it bars; the name is that of the file."""
    found = one(tmp_path, WITHOUT_TOOLS)
    assert (found.name, found.instructions) == ("one", "Help.")
    assert found.tools == tuple(each for each in OWN if each not in ("shell", "write_file"))


def test_a_folder(tmp_path: Path) -> None:
    """Agents and skills have folders of their own; AGENTS.md is for all, and other files are none."""
    config = folder(
        tmp_path,
        {
            "AGENTS.md": "Be brief.\n",
            "desk/AGENT.md": "---\ndescription: Settles\n---\nSettle it.\n",
            "pdf/SKILL.md": SKILL,
            "empty/notes.txt": "none",
            "notes.txt": "none",
            ".hidden.md": "none",
        },
    )
    found = agents(config)
    assert sorted(found) == ["desk", "pdf-filler"]
    assert found["desk"].instructions == "Settle it.\n\nBe brief."
    assert (found["pdf-filler"].tools, found["pdf-filler"].description) == (("read_file", "write_file"), "Fills forms")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no front", "one.md: has no front matter between two lines of ---"),
        ("---\n[: {\n---\nx", "one.md: the front matter is not YAML in line 2"),
        ("---\nname: a b\n---\nx", "one.md:2: name: must be 1 to 64 letters"),
        ("---\nname: a\nbudget: {steps: 3}\n---\nx", "one.md:3: budget.steps: is not a known field"),
        ("---\nname: a\ntemperature: hot\n---\nx", "one.md:3: temperature: must be a number"),
        ("---\nname: a\n\ntemperature: 9\n---\nx", "one.md:4: temperature: must be "),
        ("---\nname: a\ntools: 7\n---\nx", "one.md:3: tools"),
        ("---\nname: a\nfallback: [b]\n---\nx", "one.md:3: fallback: needs `model`"),
    ],
)
def test_a_file_that_is_no_agent(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, problem: str) -> None:
    """It is left out with a warning that names the file, the line and the key."""
    config = folder(tmp_path, {"one.md": text, "two.md": "---\nname: two\n---\nx"})
    assert list(agents(config)) == ["two"]
    (warning,) = caplog.records
    assert (warning.name, warning.levelno) == ("warren.agents", logging.WARNING)
    assert warning.getMessage().startswith(f"an agent is left out: {tmp_path}/{problem}")


def test_two_of_one_name(tmp_path: Path) -> None:
    """They are refused, in two files, and in a file and the settings."""
    config = folder(tmp_path, {"a.md": "---\nname: desk\n---\nx", "b.md": "---\nname: desk\n---\ny"})
    with pytest.raises(InvalidParamsError, match=r"b\.md: .*a\.md is an agent of the name 'desk', too"):
        with_agents_of_folders(config)
    (tmp_path / "b.md").unlink()
    with pytest.raises(InvalidParamsError, match=r"a\.md: there is another agent of the name 'desk' in the settings"):
        with_agents_of_folders(Config(agents=(Agent("desk"),), agent_folders=config.agent_folders))
    with pytest.raises(InvalidParamsError, match="nowhere: No such file"):
        with_agents_of_folders(Config(agent_folders=(AgentFolder(tmp_path / "nowhere"),)))


@pytest.mark.virtual_time
async def test_an_agent_of_some_tenants(tmp_path: Path) -> None:
    """Others learn nothing of it: neither by the list, nor by its name, nor by the names that come near."""
    folder(tmp_path, {"desk.md": "---\ndescription: Settles\n---\nSettle it.\n"})
    config = Config(agent_folders=(AgentFolder(tmp_path, ("acme",)),), agents=(Agent("clerk"),))
    async with open_supervisor(config, environ={}) as service:
        acme, burrow = (service.as_(Principal(tenant, "ann")) for tenant in ("acme", "burrow"))
        made = await acme.create_session("hi", agent="desk")
        (warning,) = made.warnings
        assert warning.startswith("agent: desk@")
        assert warning.endswith(f" has tools that are not here: {', '.join(OWN[:-1])}")
        assert [each.name for each in (await acme.agents()).agents] == ["clerk", "desk"]
        assert [each.name for each in (await burrow.agents()).agents] == ["clerk"]
        for call in (burrow.create_session("hi", agent="desk"), burrow.agent("desk")):
            with pytest.raises(InvalidParamsError, match=r"there is no agent 'desk' here$"):
                await call
        with pytest.raises(InvalidParamsError, match=r"there is no agent 'dek' here$"):
            await burrow.create_session("hi", agent="dek")
