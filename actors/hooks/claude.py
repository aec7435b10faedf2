"""The dialect of Claude Code's hooks: the JSON that a hook gets, and what its answer means.

It does no I/O.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from warren.actors.hooks.told import HookError, Told
from warren.actors.tools.claude_names import CLAUDE_ARGUMENTS, CLAUDE_NAMES, CLAUDE_TOOLS
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.categories import Category
from warren.settings.hook_config import HookEvent

BLOCKED: Final = 2
"""The exit code that blocks."""
CAP: Final = 10_000
"""Characters of a text that reaches the model."""
OURS: Final[tuple[Category, ...]] = ("builtins", "shell", "comms")
"""The kinds of tools that are Warren's own; a host's function may have the name of one."""
TELLS_MODEL: Final[tuple[HookEvent, ...]] = ("UserPromptSubmit", "SessionStart")
"""The events whose hooks may answer with a plain text, which the model gets."""
OBSERVES: Final[tuple[HookEvent, ...]] = ("SessionStart",)
"""The events that cannot be blocked."""
_OLD: Final = {"approve": "allow", "block": "deny"}
_DECISIONS: Final = {"allow": "allow", "deny": "deny", "ask": "ask", "defer": "ask"}
Decision = Literal["allow", "ask", "deny"]
_ORDER: Final[tuple[Decision, ...]] = ("deny", "ask", "allow")


@frozen
class Verdict:
    """What the hooks of an event want.

    Attributes:
        decision: `deny` blocks: a call, a prompt, a compaction, or the end of a turn; None leaves it as it is.
        reason: the reason.
        args: the arguments of a tool call in place of its own, with Claude's names; None for its own.
        context: texts that the model is to read.
        output: the result of a tool in place of its own; None for its own.
        stop: the reason to end the turn; None if it goes on.
        notes: messages for the operator.
    """

    decision: Decision | None = None
    reason: str = ""
    args: Mapping[str, Any] | None = None
    context: tuple[str, ...] = ()
    output: str | None = None
    stop: str | None = None
    notes: tuple[str, ...] = ()


NONE: Final = Verdict()


def read(event: HookEvent, told: Told) -> Verdict:
    """Return what the answer of a hook means. Raises HookError if it is a failure."""
    text = told.out.strip()
    data = _parsed(text) if text.startswith("{") else None
    blocks = told.code == BLOCKED and event not in OBSERVES
    if data is None:
        if blocks:
            return Verdict("deny", _capped(told.err.strip()) or "a hook blocks it, without a reason")
        return _of_text(event, told, text)
    try:
        found = _of_data(event, data)
    except HookError:
        if blocks:
            return Verdict("deny", _capped(told.err.strip()) or "a hook blocks it, without a reason")
        raise
    if not blocks or found.decision == "deny":
        return found
    return merged([found, Verdict("deny", _capped(told.err.strip()) or "a hook blocks it, without a reason")])


def merged(verdicts: Iterable[Verdict]) -> Verdict:
    """Return what several hooks want together: the strictest decision, with the reasons for it."""
    all_of_them = list(verdicts)
    decision = next((each for each in _ORDER if any(one.decision == each for one in all_of_them)), None)
    reasons = [one.reason for one in all_of_them if one.decision == decision and one.reason]
    return Verdict(
        decision,
        "\n".join(dict.fromkeys(reasons)),
        next((one.args for one in reversed(all_of_them) if one.args is not None), None),
        tuple(text for one in all_of_them for text in one.context),
        next((one.output for one in reversed(all_of_them) if one.output is not None), None),
        next((one.stop for one in all_of_them if one.stop is not None), None),
        tuple(note for one in all_of_them for note in one.notes),
    )


def named(name: str, category: Category) -> tuple[str, ...]:
    """Return the names of a tool for hooks: the one that they are told, and then those that lists may have too."""
    if category == "mcp":
        return (f"mcp__{name}", name) if not name.startswith("mcp__") else (name,)
    if category not in OURS or name not in CLAUDE_NAMES:
        return (name,)
    others = [theirs for theirs, ours in CLAUDE_TOOLS.items() if ours == name and theirs != CLAUDE_NAMES[name]]
    return (CLAUDE_NAMES[name], *others, name)


def theirs(name: str, category: Category, args: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Return the arguments of a tool call with Claude's names for those of our own tools.

    Args:
        name: Warren's name of the tool.
        category: its kind.
        args: its arguments.
        root: the root of the file tools, as paths are absolute there; "" if there is none.
    """
    names = _arguments(name, category)
    made = {names.get(key, key): value for key, value in args.items()}
    if isinstance(path := made.get("file_path"), str) and "path" in names and root:
        made["file_path"] = str(PurePosixPath(root) / path)
    if name == "shell" and isinstance(seconds := made.get("timeout"), int | float) and names:
        made["timeout"] = seconds * 1000
    return made


def ours(name: str, category: Category, args: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Return the arguments that a hook has changed with Warren's names: the opposite of `theirs`."""
    names = {theirs: own for own, theirs in _arguments(name, category).items()}
    made = {names.get(key, key): value for key, value in args.items()}
    if "file_path" in names and isinstance(path := made.get("path"), str) and root:
        pure = PurePosixPath(path)
        made["path"] = str(pure.relative_to(root)) if pure.is_relative_to(root) else path
    if name == "shell" and isinstance(seconds := made.get("timeout_seconds"), int | float) and names:
        made["timeout_seconds"] = seconds / 1000
    return made


def response(name: str, category: Category, text: str) -> Any:
    """Return the result of a tool as hooks are told it."""
    if name == "shell" and category in OURS:
        return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False}
    return text


def _arguments(name: str, category: Category) -> Mapping[str, str]:
    return CLAUDE_ARGUMENTS.get(name, {}) if category in OURS else {}


def _parsed(text: str) -> Mapping[str, Any] | None:
    """Return the object of a JSON; None if it is none, as it is a plain text then."""
    try:
        data = codec.parse(text.encode())
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _of_text(event: HookEvent, told: Told, text: str) -> Verdict:
    if told.code == BLOCKED:
        return Verdict(notes=(_capped(told.err.strip()),))
    if told.code != 0:
        why = told.err.strip().partition("\n")[0]
        raise HookError(_capped(f"exit code {told.code}" + (f": {why}" if why else "")))
    if not told.plain and text:
        raise HookError("the answer is no JSON object")
    return Verdict(context=(_capped(text),)) if text and event in TELLS_MODEL else NONE


def _of_data(event: HookEvent, data: Mapping[str, Any]) -> Verdict:
    """Return what a JSON means. Raises HookError if a field of it is bad."""
    specific = _field(data, "hookSpecificOutput", dict, {})
    of_event = specific.get("hookEventName", event) == event
    decision, reason = _decision(event, data, specific if of_event else {})
    context, output = _field(specific, "additionalContext", str, "") if of_event else "", None
    if event == "PostToolUse":
        output = specific.get("updatedToolOutput", specific.get("updatedMCPToolOutput"))
    stop = None
    if _field(data, "continue", bool, True) is False and event != "PreCompact":
        stop = _capped(_field(data, "stopReason", str, "")) or "a hook ends the turn"
    note = _field(data, "systemMessage", str, "")
    return Verdict(
        decision,
        _capped(reason),
        _field(specific, "updatedInput", dict, None) if event == "PreToolUse" else None,
        (_capped(context),) if context else (),
        None if output is None else _output(output),
        stop,
        (_capped(note),) if note else (),
    )


def _decision(event: HookEvent, data: Mapping[str, Any], specific: Mapping[str, Any]) -> tuple[Decision | None, str]:
    given = data.get("decision")
    if event == "PreToolUse" and "permissionDecision" in specific:
        given = specific["permissionDecision"]
        if given not in _DECISIONS:
            raise HookError(f"permissionDecision: must be one of {', '.join(_DECISIONS)}, not {given!r}")
        decision: Any = _DECISIONS[given]
        return decision, _field(specific, "permissionDecisionReason", str, "")
    if given is None or event in OBSERVES:
        return None, ""
    if given not in (_OLD if event == "PreToolUse" else ("approve", "block")):
        raise HookError(f"decision: must be block, not {given!r}")
    decision = _OLD[given]
    blocks = decision == "deny"
    reason = _field(data, "reason", str, "")
    if event == "PreToolUse":
        return decision, reason
    return ("deny", reason or "a hook blocks it, without a reason") if blocks else (None, "")


def _field(data: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        words = {str: "a string", dict: "an object", bool: "true or false"}[kind]
        raise HookError(f"{name}: must be {words}")
    return value


def _output(value: Any) -> str:
    """Return the result of a tool that a hook has changed."""
    if isinstance(value, dict) and isinstance(value.get("stdout"), str):
        return "\n".join(part for part in (value["stdout"], str(value.get("stderr") or "")) if part)
    return value if isinstance(value, str) else codec.encode(value).decode()


def _capped(text: str) -> str:
    return text if len(text) <= CAP else f"{text[:CAP]} [{len(text) - CAP} more characters are left out]"
