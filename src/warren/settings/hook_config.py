"""The settings of hooks that are commands or web addresses, as plain values."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.fields import Each, FieldValueError, OneOf, not_blank, optional, positive
from warren.base.principals import TENANT
from warren.base.values import frozen
from warren.conversation.options import in_row
from warren.settings.tool_config import web_address

HookEvent = Literal[
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "UserPromptSubmit",
    "Stop",
    "SubagentStop",
    "PreCompact",
    "SessionStart",
]
HOOK_EVENTS: Final = get_args(HookEvent)
SECONDS: Final = 600.0
PROMPT_SECONDS: Final = 30.0
"""The time limit of a hook that a prompt waits for, as nothing else happens in the session meanwhile."""
_NAMES: Final = re.compile(r"[A-Za-z0-9_\-\s,|]*")
"""Matchers of these characters are lists of names, all others regular expressions."""
_RULE: Final = re.compile(r"([A-Za-z_][\w-]*)(?:\((.*)\))?", re.DOTALL)


def _matcher(_instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    try:
        re.compile(value if value != "*" else "")
    except (re.error, RecursionError, OverflowError) as exc:
        raise FieldValueError(attribute.name, f"must be names, a regular expression or *: {exc}") from None


def _rule(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not _RULE.fullmatch(value):
        raise FieldValueError(attribute.name, "must be a rule for one tool, as in Bash(git *)")


@frozen(kw_only=True)
class HookEntry:
    """A hook of the settings: a command or a web address that is told of an event, and may decide about it.

    Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        event: the event, by Claude Code's name for it.
        matcher: the tools that it is about (or the kinds of its event): names with | between them, a regular
            expression, or * for all.
        condition: a rule that has to hold for a tool call besides, as in "Bash(git *)"; None for no such rule.
        command: the command, for `sh -c`; with `args`, the program.
        args: the arguments of the program, which no shell sees; None for a command of the shell.
        url: the address that the event is posted to.
        headers: headers of the request, with variables as $NAME or ${NAME}; only those in `env` have a value.
        env: names of environment variables that the hook gets besides the harmless ones; `*` matches any characters.
        project: the folder for CLAUDE_PROJECT_DIR; None for the root of the file tools, or else for the working folder.
        timeout: seconds that it may take; None for 600, and for 30 if a prompt waits for it.
        on_failure: what a hook that fails, or takes too long, counts as: `allow` goes on without it, `deny` refuses.
        background: whether nothing waits for it; then it can decide nothing.
        tenants: the tenants whose sessions it is for; None for all.
    """

    event: HookEvent = attrs.field(validator=OneOf(HOOK_EVENTS))
    matcher: str = attrs.field(default="*", validator=_matcher)
    condition: str | None = attrs.field(default=None, validator=_rule)
    command: str | None = attrs.field(default=None, validator=not_blank)
    args: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(in_row))
    url: str | None = attrs.field(default=None, validator=web_address)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    env: tuple[str, ...] = attrs.field(default=(), converter=in_row)
    project: Path | None = None
    timeout: float | None = attrs.field(default=None, validator=positive)
    on_failure: Literal["allow", "deny"] = attrs.field(default="allow", validator=OneOf(("allow", "deny")))
    background: bool = False
    tenants: tuple[str, ...] | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(in_row),
        validator=optional(Each(lambda name: TENANT.fullmatch(str(name)), "has {}, which cannot be a tenant's name")),
    )

    def __attrs_post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise FieldValueError("command", "is required, or url" if self.url is None else "does not go with url")
        if self.url is not None and self.args is not None:
            raise FieldValueError("args", "has no meaning for a hook with url")
        if self.command is not None and self.headers:
            raise FieldValueError("headers", "has no meaning for a hook with command")
        if any("\0" in text for text in (self.command or "", *(self.args or ()))):
            raise FieldValueError("command", "must not hold NUL")

    @property
    def name(self) -> str:
        """What messages and logs call it."""
        return f"{self.event} hook {self.command if self.url is None else self.url.partition('?')[0]}"[:200]

    @property
    def seconds(self) -> float:
        """The seconds that it may take."""
        if self.timeout is not None:
            return self.timeout
        return PROMPT_SECONDS if self.event == "UserPromptSubmit" else SECONDS

    @cached_property
    def _names(self) -> frozenset[str] | None:
        if not _NAMES.fullmatch(self.matcher):
            return None
        return frozenset(name.strip() for name in re.split("[|,]", self.matcher))

    def fits(self, name: str, *others: str) -> bool:
        """Return whether the hook is for a tool of a name, or for events of a kind.

        A list of names may have one of its `others` too. A regular expression may not: one that leaves a tool out by
        its name would find it again by another one.
        """
        if self.matcher in ("", "*"):
            return True
        if self._names is not None:
            return not self._names.isdisjoint((name, *others))
        return re.search(self.matcher, name) is not None

    def is_for(self, tenant: str) -> bool:
        """Return whether the hook is for the sessions of a tenant."""
        return self.tenants is None or tenant in self.tenants

    @property
    def rule(self) -> tuple[str, str | None] | None:
        """The tool and the pattern of `condition`; no pattern is any call of the tool."""
        found = None if self.condition is None else _RULE.fullmatch(self.condition)
        return None if found is None else (found[1], found[2])
