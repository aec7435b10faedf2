"""The operations of the contract as arguments of commands. No I/O."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from tests.parity.surface import CREATE, TURN, UnsayableError
from tests.parity.world import SCRIPT, World
from warren.conversation import codec
from warren.transport.cli.settings.options import COMPACTION_FLAGS

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    CREATE: ("run",),
    TURN: ("resume",),
    "turn/wait": ("wait",),
    "session/delegate": ("delegate",),
    "session/read": ("sessions", "show"),
    "session/history": ("sessions", "show"),
    "session/context": ("sessions", "context"),
    "session/list": ("sessions", "list"),
    "session/archive": ("sessions", "archive"),
    "session/delete": ("sessions", "delete"),
    "session/compact": ("compact",),
    "session/fork": ("sessions", "fork"),
    "session/label": ("sessions", "label"),
    "memory/search": ("memory", "search"),
    "memory/forget": ("memory", "forget"),
    "usage/get": ("usage",),
    "approvals/list": ("approvals",),
}
NEEDED: Final[Mapping[str, set[str]]] = {
    operation: {
        CREATE: {"prompt"},
        "session/list": set(),
        "usage/get": set(),
        "approvals/list": set(),
        "memory/search": {"query"},
    }.get(operation, {"session_id"})
    for operation in COMMANDS
} | {operation: {"session_id", "prompt"} for operation in (TURN, "session/delegate")}
RUN_A_MODEL: Final = (CREATE, TURN, "turn/wait", "session/delegate", "session/compact")
FLAGS: Final[Mapping[str, str]] = {
    "model": "--model",
    "provider": "--provider",
    "system_prompt": "--system",
    "agent": "--agent",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "prompt_cache": "--prompt-cache",
    "durability": "--durability",
    "effort": "--effort",
    "reasoning_tokens": "--reasoning-tokens",
    "max_steps": "--max-steps",
    "max_tool_calls": "--max-tool-calls",
    "max_seconds": "--max-duration",
    "max_cost": "--max-cost",
    "budget.max_tokens": "--max-total-tokens",
    "auto_compact_threshold": "--compact-threshold",
    "recent_turn_budget": "--compact-keep",
    "max_summary_tokens": "--compact-summary-tokens",
    "min_turns_between_compactions": "--compact-every",
    "window": "--context-window",
    "instructions": "--instructions",
    "at": "--at",
    "offset": "--offset",
    "limit": "--limit",
    "scope": "--scope",
    "by": "--by",
    "title": "--title",
    "turn": "--turn",
    "text_id": "--id",
    "idempotency_key": "--key",
}
IN_PLACE: Final = ("session_id", "prompt", "query")
"""Fields that are no option but an argument."""
NO_OPTIONS: Final = {
    (CREATE, "tools"),
    (TURN, "system_prompt"),
    (TURN, "idempotency_key"),
    ("session/history", "offset"),
}
GROUPS: Final = re.compile(r"^\$\.(budget|compaction)\.")
"""Fields that are an object elsewhere and some options here."""
RENAMED: Final = {
    "$.budget.max_tokens": "$.max_total_tokens",
    "$.budget.max_seconds": "$.max_duration",
    **{f"$.compaction.{name}": f"$.{flag[2:].replace('-', '_')}" for flag, name in COMPACTION_FLAGS.items()},
}


def arguments(world: World, operation: str, params: Mapping[str, Any], server: str | None = None) -> list[str]:
    """Return the arguments that say all this, without a server to a process of the build. Raises UnsayableError."""
    given = {name: value for name, value in params.items() if value is not None}
    if not NEEDED[operation] <= given.keys():
        raise UnsayableError("what is missing would be another argument, or is read from stdin")
    if operation == "memory/search" and "session_id" in given:
        given["session"] = given.pop("session_id")
    if operation == "session/read":
        given.pop("children", None)  # the command counts them by itself
    if any((operation, name) in NO_OPTIONS for name in given):
        raise UnsayableError("the command has no such option")
    placed = [given.pop(name) for name in IN_PLACE if name in given]
    if operation == "session/label":
        placed += _changes(given)
    if not all(isinstance(text, str) for text in placed):
        raise UnsayableError("an argument is text")
    usual = _usual(world, operation, given) if server is None else [f"--server={server}"]
    options = [*usual, *_options(given), "--output=json"]
    if operation in (CREATE, TURN):
        options.append("--verbose")
    return [*options, "--", *placed]


def _changes(given: dict[str, Any]) -> list[str]:
    """Return labels as arguments; those to be taken away become options."""
    labels = given.pop("labels", {})
    if not isinstance(labels, dict):
        raise UnsayableError("labels are arguments of their own")
    given["remove"] = [key for key, value in labels.items() if value is None]
    return [f"{key}={_text(value)}" for key, value in labels.items() if value is not None]


def _options(given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        match name, value:
            case "labels", dict():
                yield from (f"--label={key}={_text(inner)}" for key, inner in value.items())
            case (("remove" | "fallback" | "tools"), list()) if value:
                yield from (f"--{name.removesuffix('s')}={_text(each)}" for each in value)
            case "budget", dict():
                yield from _options({"budget.max_tokens" if key == "max_tokens" else key: value[key] for key in value})
            case "compaction", dict():
                yield from _options(value)
            case (("output_schema" | "hosted_tools"), dict()):
                yield f"--{name.replace('_', '-')}={codec.encode(value).decode()}"
            case "include_archived", True:
                yield "--all"
            case (("session" | "turn_state" | "delegated_by"), _):
                yield f"--{name.replace('_', '-')}={_text(value)}"
            case _ if name in FLAGS:
                yield f"{FLAGS[name]}={_text(value)}"
            case _:
                raise UnsayableError(f"there is no option for {name}")


def _text(value: object) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise UnsayableError(f"a command has no way to say {value!r}")


def _usual(world: World, operation: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that make a process of this build with this setting; what the call says itself is left out."""
    yield "--ephemeral" if world.place is None else f"--store={world.place}"
    if operation not in RUN_A_MODEL:
        return
    if operation == CREATE and "model" not in given:
        yield f"--model=scripted:{SCRIPT}"
    yield "--memory" if "memory" in world.build.on else "--no-memory"
    if "compaction" not in world.build.on:
        yield "--no-compaction"
    elif "compaction" not in given:
        yield from _options({"auto_compact_threshold": world.setting.threshold, "recent_turn_budget": 0})
        yield "--compact-every=0"
    if operation not in ("session/compact", "turn/wait") and "budget" not in given:
        limits = attrs.asdict(world.setting.budget)
        yield from _options({"budget": {name: value for name, value in limits.items() if value is not None}})


def option_of(path: str | None) -> str | None:
    """Return the path that names the option for a field."""
    return RENAMED.get(path or "", path and GROUPS.sub("$.", path))
