"""The dialect of Claude Code's hooks, without a process: what an answer means, and the names of tools."""

import json
from typing import Any

import pytest

from warren.actors.hooks.claude import CAP, NONE, Verdict, merged, named, ours, read, response, theirs
from warren.actors.hooks.told import HookError, Told
from warren.actors.tools.mcp.naming import names, origin
from warren.conversation.categories import Category
from warren.settings.hook_config import HookEvent


def answer(data: Any, code: int = 0, err: str = "") -> Told:
    """Return an answer with a JSON."""
    return Told(code, json.dumps(data), err)


def specific(**fields: Any) -> dict[str, Any]:
    """Return the part of an answer that is for calls before they run."""
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}


@pytest.mark.parametrize(
    "event", ["PreToolUse", "UserPromptSubmit", "Stop", "SubagentStop", "PreCompact", "PostToolUse"]
)
def test_exit_code_2_blocks(event: HookEvent) -> None:
    """With the text on stderr as its reason, whatever is on stdout."""
    assert read(event, Told(2, "out", " why \n")) == Verdict("deny", "why")
    assert read(event, Told(2, '{"decision": 1}', "why")) == Verdict("deny", "why")
    assert read(event, Told(2)).reason


def test_exit_code_2_wins_over_an_allowance() -> None:
    """And the reason of a JSON that blocks wins over stderr."""
    assert read("PreToolUse", answer(specific(permissionDecision="allow"), 2, "no")) == Verdict("deny", "no")
    denied = specific(permissionDecision="deny", permissionDecisionReason="by rule")
    assert read("PreToolUse", answer(denied, 2, "no")) == Verdict("deny", "by rule")


def test_what_cannot_be_blocked() -> None:
    """Has the text on stderr noted instead."""
    assert read("SessionStart", Told(2, "", "why")) == Verdict(notes=("why",))


def test_other_exit_codes_are_failures() -> None:
    """Unless there is a JSON, which decides then."""
    with pytest.raises(HookError, match="exit code 1: first"):
        read("PreToolUse", Told(1, "text", "first\nsecond"))
    assert read("PreToolUse", answer(specific(permissionDecision="deny"), 1)).decision == "deny"


def test_plain_texts() -> None:
    """Are for the model where a turn or a session begins, and nothing elsewhere, bad JSON too."""
    for event in ("UserPromptSubmit", "SessionStart"):
        assert read(event, Told(0, " on main\n")) == Verdict(context=("on main",))
        assert read(event, Told(0, '{"bad')) == Verdict(context=('{"bad',))
        assert read(event, Told(0, '["a"]')) == Verdict(context=('["a"]',))
        assert read(event, Told(0, "x" * (CAP + 5))).context[0].endswith("x [5 more characters are left out]")
    assert read("PreToolUse", Told(0, '{"bad')) == NONE == read("Stop", Told(0, "text"))
    with pytest.raises(HookError, match="no JSON"):
        read("UserPromptSubmit", Told(0, "text", plain=False))
    assert read("UserPromptSubmit", Told(0, "", plain=False)) == NONE


@pytest.mark.parametrize(("given", "meant"), [("allow", "allow"), ("deny", "deny"), ("ask", "ask"), ("defer", "ask")])
def test_decisions_about_calls(given: str, meant: str) -> None:
    """A decision that is put off is a question: the call waits, with no process, until somebody answers."""
    found = read("PreToolUse", answer(specific(permissionDecision=given, permissionDecisionReason="r")))
    assert (found.decision, found.reason) == (meant, "r")


def test_the_former_decisions_about_calls() -> None:
    """`approve` and `block`, above the part for the event."""
    assert read("PreToolUse", answer({"decision": "approve"})).decision == "allow"
    assert read("PreToolUse", answer({"decision": "block", "reason": "r"})) == Verdict("deny", "r")


def test_changed_arguments_and_context() -> None:
    """Come with the decision."""
    found = read("PreToolUse", answer(specific(updatedInput={"a": 1}, additionalContext="c")))
    assert found == Verdict(args={"a": 1}, context=("c",))


def test_a_part_for_another_event_is_ignored() -> None:
    """As its fields mean something else there."""
    assert read("PostToolUse", answer(specific(permissionDecision="deny", additionalContext="c"))) == NONE


@pytest.mark.parametrize("event", ["PostToolUse", "Stop", "UserPromptSubmit", "PreCompact"])
def test_block(event: HookEvent) -> None:
    """Has a reason; what is not blocked needs none."""
    assert read(event, answer({"decision": "block", "reason": "r"})) == Verdict("deny", "r")
    assert read(event, answer({"decision": "block"})).reason
    assert read(event, answer({"reason": "r"})) == NONE


def test_the_end_of_a_turn() -> None:
    """Has a reason, in any case."""
    assert read("PostToolUse", answer({"continue": False, "stopReason": "r"})).stop == "r"
    assert read("PreToolUse", answer({"continue": False})).stop
    assert read("PreCompact", answer({"continue": False})).stop is None


def test_changed_results() -> None:
    """As a text, as a command's output, or as data."""
    for given, meant in (("t", "t"), ({"stdout": "a", "stderr": "b"}, "a\nb"), ({"x": [1]}, '{"x":[1]}')):
        told = answer({"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": given}})
        assert read("PostToolUse", told).output == meant


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (specific(permissionDecision="maybe"), "permissionDecision: must be one of"),
        (specific(updatedInput="x"), "updatedInput: must be an object"),
        ({"decision": "deny"}, "decision: must be block, not 'deny'"),
        ({"continue": "no"}, "continue: must be true or false"),
        ({"hookSpecificOutput": []}, "hookSpecificOutput: must be an object"),
        ({"systemMessage": 1}, "systemMessage: must be a string"),
    ],
)
def test_bad_fields_are_failures(data: Any, problem: str) -> None:
    """They name the field: a decision that nobody understands is none."""
    with pytest.raises(HookError, match=problem):
        read("PreToolUse", answer(data))


def test_several_hooks_of_an_event() -> None:
    """The strictest decides, with the reasons of those that decide the same; all contexts are told."""
    verdicts = [
        Verdict("allow", "fine", args={"a": 1}, context=("1",)),
        Verdict("deny", "x"),
        Verdict("ask", "sure?", args={"a": 2}, context=("2",)),
        Verdict("deny", "y", stop="s"),
    ]
    assert merged(verdicts) == Verdict("deny", "x\ny", {"a": 2}, ("1", "2"), stop="s")
    assert merged([]) == NONE


def test_names_of_tools() -> None:
    """Our own tools have Claude's; a host's function of the same name has its own."""
    assert named("shell", "shell") == ("Bash", "shell")
    assert named("edit_file", "builtins") == ("Edit", "MultiEdit", "edit_file")
    assert named("edit_file", "callback") == ("edit_file",)


@pytest.mark.parametrize(
    ("name", "args", "claudes"),
    [
        ("read_file", {"path": "a/b.py", "offset_lines": 3}, {"file_path": "/root/a/b.py", "offset": 3}),
        ("write_file", {"path": "a", "content": "c"}, {"file_path": "/root/a", "content": "c"}),
        ("edit_file", {"path": "a", "old": "o", "new": "n", "replace_all": True}, None),
        ("shell", {"command": "ls", "timeout_seconds": 1.5}, {"command": "ls", "timeout": 1500.0}),
        (
            "search_files",
            {"pattern": "x", "path": "src", "ignore_case": True},
            {"pattern": "x", "path": "src", "-i": True},
        ),
        ("fetch", {"url": "https://a.b"}, {"url": "https://a.b"}),
    ],
)
def test_names_of_arguments(name: str, args: dict[str, Any], claudes: dict[str, Any] | None) -> None:
    """Go there and back: paths of files are absolute there, times are in milliseconds."""
    category: Category = "shell" if name == "shell" else "builtins"
    made = theirs(name, category, args, "/root")
    if claudes is not None:
        assert made == claudes
    assert ours(name, category, made, "/root") == args
    assert theirs(name, "callback", args, "/root") == args


def test_results_of_tools() -> None:
    """Those of the shell have Claude's form, all others are texts."""
    assert response("shell", "shell", "out")["stdout"] == "out"
    assert response("pay", "callback", "out") == "out"


def test_the_server_of_a_tool() -> None:
    """Is found by the name that the tool has here, also if two servers have one of that name."""
    offers = [("files", "search"), ("web", "search"), ("web", "fetch.page"), ("git", "log")]
    found = {name: origin(name, offers) for name in (*names(offers, {"log"}), "other")}
    assert found == {
        "files_search": ("files", "search"),
        "web_search": ("web", "search"),
        "fetch_page": ("web", "fetch.page"),
        "git_log": ("git", "log"),
        "other": None,
    }
