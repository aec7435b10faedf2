"""Files with hooks in the form of Claude Code's settings."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from warren import Config, ToolsConfig
from warren.actors.hooks.settings import LARGEST_FILE, entries_of
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.settings.hook_config import HookEntry, HookEvent


def written(folder: Path, data: Any) -> Path:
    """Write the settings of a project."""
    path = folder / ".claude" / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def one(handler: dict[str, Any], event: str = "PreToolUse", **group: Any) -> dict[str, Any]:
    """Return settings with one hook."""
    return {"model": "opus", "hooks": {event: [{**group, "hooks": [handler]}]}}


def read(path: Path, **config: Any) -> tuple[HookEntry, ...]:
    """Return the hooks of a file."""
    return entries_of(Config(hooks_files=(path,), **config))


def test_hooks_of_a_file(tmp_path: Path) -> None:
    """Come behind those of the settings themselves, with the folder of their project."""
    handlers = [
        {"type": "command", "command": '"$CLAUDE_PROJECT_DIR"/.claude/guard.py', "timeout": 5},
        {
            "type": "command",
            "command": "${CLAUDE_PROJECT_DIR}/x",
            "args": ["${CLAUDE_PROJECT_DIR}/y"],
            "if": "Bash(rm *)",
        },
        {"command": "log", "async": True, "statusMessage": "…"},
        {"type": "http", "url": "https://a.b", "headers": {"x": "$KEY"}, "allowedEnvVars": ["KEY"]},
    ]
    path = written(tmp_path, {"hooks": {"PreToolUse": [{"matcher": "Bash|Write", "hooks": handlers}], "Stop": []}})
    first = HookEntry(event="Stop", command="first")
    shared: dict[str, Any] = {"event": "PreToolUse", "matcher": "Bash|Write", "project": tmp_path}
    assert entries_of(Config(hook_commands=(first,), hooks_files=(path,))) == (
        first,
        HookEntry(**shared, command='"$CLAUDE_PROJECT_DIR"/.claude/guard.py', timeout=5),
        HookEntry(**shared, command=f"{tmp_path}/x", args=(f"{tmp_path}/y",), condition="Bash(rm *)"),
        HookEntry(**shared, command="log", background=True),
        HookEntry(**shared, url="https://a.b", headers={"x": "$KEY"}, env=("KEY",)),
    )


def test_what_warren_does_not_have_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning that names the file and the place: an event, a type, a shell, a field."""
    handler = {"type": "command", "command": "x"}
    hooks = {
        "WorktreeCreate": [{"hooks": [handler]}],
        "Stop": [{"hooks": [{"type": "prompt", "prompt": "done?"}, {**handler, "shell": "powershell"}]}],
        "PreToolUse": [{"hooks": [{**handler, "colour": "red"}]}],
    }
    path = written(tmp_path, {"hooks": hooks})
    with caplog.at_level(logging.WARNING, "warren.hooks"):
        assert [entry.event for entry in read(path)] == ["PreToolUse"]
    told = "\n".join(caplog.messages)
    for what in ("hooks.WorktreeCreate", "hooks.Stop[0].hooks[0]", "'prompt'", "hooks.Stop[0].hooks[1]", "].colour"):
        assert what in told
    assert all(str(path) in message for message in caplog.messages)


def test_all_of_them_are_off(tmp_path: Path) -> None:
    """If the file says so; and a file without hooks has none."""
    assert read(written(tmp_path, {**one({"command": "x"}), "disableAllHooks": True})) == ()
    assert read(written(tmp_path, {"permissions": {}})) == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("{", "the file is no JSON"),
        ("[]", "the file must be an object"),
        pytest.param(" " * LARGEST_FILE + "{}", f"the file has more than {LARGEST_FILE} bytes", id="large"),
        ({"hooks": []}, "hooks must be an object"),
        ({"hooks": {"Stop": {}}}, "hooks.Stop must be a list"),
        (one({"type": "command"}), "hooks.PreToolUse[0].hooks[0].command is required, or url"),
        (one({"type": "command", "command": "x", "timeout": "5"}), "hooks.PreToolUse[0].hooks[0].timeout must be"),
        (one({"type": "command", "command": "x"}, matcher="(("), "hooks.PreToolUse[0].hooks[0].matcher must be"),
        (one({"type": "http", "url": "ftp://a"}), "hooks.PreToolUse[0].hooks[0].url must be"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, data: Any, problem: str) -> None:
    """It names the file and the field: a guard that is misspelt must not be missing silently."""
    with pytest.raises(InvalidParamsError) as refused:
        read(written(tmp_path, data))
    assert problem in refused.value.message
    assert refused.value.path == "$.hooks_files[0]"
    assert str(tmp_path) in refused.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Is refused as well."""
    with pytest.raises(InvalidParamsError, match="the file cannot be read: No such file"):
        read(tmp_path / "missing.json")


def test_a_file_that_sessions_can_write(tmp_path: Path) -> None:
    """Is refused, also one that is there by a link."""
    path = written(tmp_path / "root", one({"command": "x"}))
    outside = tmp_path / "outside.json"
    outside.symlink_to(path)
    (tmp_path / "root" / "link.json").symlink_to(written(tmp_path / "other", one({"command": "x"})))
    for each in (path, outside, tmp_path / "root" / "link.json"):
        with pytest.raises(InvalidParamsError, match="in the folder that sessions can write"):
            read(each, tools=ToolsConfig(root=tmp_path / "root"))
    assert read(path, tools=ToolsConfig(root=tmp_path / "other"))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({}, "command"),
        ({"command": "x", "url": "https://a"}, "command"),
        ({"command": "x\0"}, "command"),
        ({"url": "https://a", "args": ["x"]}, "args"),
        ({"command": "x", "headers": {"a": "b"}}, "headers"),
        ({"command": "x", "tenants": ["a b"]}, "tenants"),
        ({"command": "x", "condition": "Bash("}, "condition"),
        ({"command": "x", "timeout": 0}, "timeout"),
        ({"command": "x", "on_failure": "maybe"}, "on_failure"),
        ({"command": "x", "event": "Other"}, "event"),
    ],
)
def test_bad_entries(more: dict[str, Any], field: str) -> None:
    """Name their field."""
    with pytest.raises(FieldValueError) as refused:
        HookEntry(**{"event": "Stop", **more})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("matcher", "fits", "others"),
    [
        ("*", ["Bash", "x"], []),
        ("", ["Bash"], []),
        ("Bash", ["Bash"], ["BashOutput"]),
        ("Edit|Write", ["Edit", "Write"], ["MultiEdit"]),
        ("Edit, Write", ["Write"], ["NotebookEdit"]),
        ("Edit.*", ["Edit", "NotebookEdit"], ["Write"]),
        ("^Notebook", ["NotebookEdit"], ["MyNotebook"]),
        ("mcp__memory__.*", ["mcp__memory__create"], ["mcp__other__create"]),
        ("mcp__memory", [], ["mcp__memory__create"]),
        ("^(?!mcp__)", ["Bash"], ["mcp__a__b"]),
    ],
)
def test_matchers(matcher: str, fits: list[str], others: list[str]) -> None:
    """Names are compared whole, and regular expressions are looked for."""
    event: HookEvent = "PreToolUse"
    entry = HookEntry(event=event, command="x", matcher=matcher)
    assert [name for name in (*fits, *others) if entry.fits(name)] == fits


def test_other_names_of_a_tool() -> None:
    """A list may have them; an expression that leaves the tool out does not find it by another name."""
    assert HookEntry(event="PreToolUse", command="x", matcher="shell").fits("Bash", "shell")
    assert not HookEntry(event="PreToolUse", command="x", matcher="^(?!Bash)").fits("Bash", "shell")
