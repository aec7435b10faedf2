"""What clients of Meerkat ask for, in their words, and how it is said in ours."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import attrs

from warren.budget import Budget
from warren.categories import INHERIT, Switch, Switches
from warren.errors import InvalidParamsError
from warren.fields import LARGEST, Between, FieldValueError, fits, not_negative, positive
from warren.options import SessionRequest, TurnRequest
from warren.requests import MAX_PAGE
from warren.tools import ToolSpec

BLANK_LINE: Final = "\n\n"
SWITCHES: Final[Mapping[bool | None, Switch]] = {None: "inherit", True: "enable", False: "disable"}
NOT_HERE: Final = "is not supported by this server: leave it out"
WRAPPER: Final = frozenset({"schema", "name", "strict", "compat", "format"})
NANOSECONDS: Final = 1e9


def _absent(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """Let a field that Meerkat has and we have not ask for nothing."""
    if value not in (None, False, [], {}):
        raise FieldValueError(attribute.name, NOT_HERE)


@attrs.frozen
class BudgetLimits:
    """Limits of a session; `max_duration` is in seconds, or `{secs, nanos}`."""

    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_duration: Any = None
    max_tool_calls: int | None = attrs.field(default=None, validator=[positive, fits])

    def budget(self) -> Budget:
        """Return them in our words. Raises InvalidParamsError."""
        return Budget(self.max_tokens, _seconds(self.max_duration), self.max_tool_calls)


@attrs.frozen
class Create:
    """Of `session/create`. What concerns us alone is taken; what we cannot do is refused, by name."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        "override_builtins": "enable_builtins",
        "override_shell": "enable_shell",
        "override_memory": "enable_memory",
    }

    prompt: Any
    model: str | None = None
    provider: str | None = None
    system_prompt: str | None = None
    max_tokens: int | None = None
    labels: Mapping[str, str] | None = None
    budget_limits: BudgetLimits | None = None
    additional_instructions: tuple[str, ...] | None = None
    external_tools: tuple[ToolSpec, ...] | None = None
    initial_turn: Literal["run_immediately", "deferred"] = "run_immediately"
    session_events: bool | None = None
    keep_alive: bool | None = None
    host_mode: bool | None = None
    enable_memory: bool | None = None
    app_context: Any = None
    structured_output_retries: int | None = None
    output_schema: Mapping[str, Any] | None = None
    enable_builtins: bool | None = None
    enable_shell: bool | None = None
    enable_schedule: Any = attrs.field(default=None, validator=_absent)
    enable_workgraph: Any = attrs.field(default=None, validator=_absent)
    enable_subagents: Any = attrs.field(default=None, validator=_absent)
    enable_mob: Any = attrs.field(default=None, validator=_absent)
    enable_web_search: Any = attrs.field(default=None, validator=_absent)
    auth_binding: Any = attrs.field(default=None, validator=_absent)
    hooks_override: Any = attrs.field(default=None, validator=_absent)
    comms_name: Any = attrs.field(default=None, validator=_absent)
    peer_meta: Any = attrs.field(default=None, validator=_absent)
    provider_params: Any = attrs.field(default=None, validator=_absent)
    preload_skills: Any = attrs.field(default=None, validator=_absent)
    skill_refs: Any = attrs.field(default=None, validator=_absent)
    skill_references: Any = attrs.field(default=None, validator=_absent)
    injected_context: Any = attrs.field(default=None, validator=_absent)
    transient_turn_context: Any = attrs.field(default=None, validator=_absent)
    shell_env: Any = attrs.field(default=None, validator=_absent)

    def translated(self) -> SessionRequest:
        """Return it in our words, whose bounds hold. Raises InvalidParamsError and FieldValueError."""
        prompt = text_of(self.prompt)
        parts = [self.system_prompt, *(self.additional_instructions or ())]
        return SessionRequest(
            prompt=None if self.initial_turn == "deferred" else prompt,
            model=self.model,
            provider=self.provider,
            system_prompt=BLANK_LINE.join(part for part in parts if part) or None,
            max_tokens=self.max_tokens,
            labels=self.labels,
            budget=None if self.budget_limits is None else self.budget_limits.budget(),
            output_schema=bare_schema(self.output_schema),
            structured_output_retries=self.structured_output_retries,
            overrides=self.switches(),
        )

    def switches(self) -> Switches | None:
        """Return which kinds of tools it is offered, in our words; None where nothing is said of any."""
        said = Switches(builtins=SWITCHES[self.enable_builtins], shell=SWITCHES[self.enable_shell])
        return None if said == INHERIT else said


@attrs.frozen
class Start:
    """Of `turn/start`."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        name: f"{field} of session/create" for name, field in Create.ELSEWHERE.items()
    }

    session_id: str
    prompt: Any
    model: str | None = None
    provider: str | None = None
    max_tokens: int | None = None
    additional_instructions: tuple[str, ...] | None = None
    session_events: bool | None = None
    keep_alive: bool | None = None
    host_mode: bool | None = None
    structured_output_retries: int | None = None
    output_schema: Mapping[str, Any] | None = None
    system_prompt: Any = attrs.field(default=None, validator=_absent)
    provider_params: Any = attrs.field(default=None, validator=_absent)
    auth_binding: Any = attrs.field(default=None, validator=_absent)
    self_hosted_server_id: Any = attrs.field(default=None, validator=_absent)
    skill_refs: Any = attrs.field(default=None, validator=_absent)
    skill_references: Any = attrs.field(default=None, validator=_absent)
    injected_context: Any = attrs.field(default=None, validator=_absent)
    transient_turn_context: Any = attrs.field(default=None, validator=_absent)
    flow_tool_overlay: Any = attrs.field(default=None, validator=_absent)
    turn_tool_overlay: Any = attrs.field(default=None, validator=_absent)

    def translated(self) -> TurnRequest:
        """Return it in our words; instructions for this turn come before its prompt. Raises InvalidParamsError."""
        prompt = BLANK_LINE.join([*(self.additional_instructions or ()), text_of(self.prompt)])
        return TurnRequest(
            self.session_id,
            prompt,
            model=self.model,
            provider=self.provider,
            max_tokens=self.max_tokens,
            output_schema=bare_schema(self.output_schema),
            structured_output_retries=self.structured_output_retries,
        )


@attrs.frozen
class Hello:
    """Of `initialize`; Meerkat's own clients say nothing of themselves."""

    client_info: Mapping[str, Any] | None = None
    contract_version: str | None = None


@attrs.frozen
class InjectContext:
    """Of `session/inject_context`: the words are in `text` or in `content`, as the version has it."""

    session_id: str
    text: str | None = None
    content: Any = None
    source: str | None = None
    idempotency_key: str | None = None

    def words(self, usual: str) -> str:
        """Return what the model is to know; without it the `usual` field is missing. Raises InvalidParamsError."""
        if self.content is None and self.text is None:
            raise _bad(f"$.{usual}", "is required")
        if self.content is None:
            return self.text or ""
        if self.text is not None:
            raise _bad("$.text", "say it in `content` alone")
        content = self.content
        if isinstance(content, dict) and content.get("type") == "blocks":
            content = content.get("blocks")
        elif isinstance(content, dict):
            content = [content]
        return text_of(content, "$.content")


@attrs.frozen
class OpenStream:
    """Of `session/stream_open`."""

    session_id: str


@attrs.frozen
class CloseStream:
    """Of `session/stream_close`."""

    stream_id: str


@attrs.frozen
class ReadConfig:
    """Of `config/get` and of others that take nothing; Meerkat's clients may say for whom they ask."""

    realm_id: str | None = None


@attrs.frozen
class Page:
    """Of `session/list`."""

    labels: Mapping[str, str] | None = None
    limit: int | None = attrs.field(default=None, validator=Between(1, MAX_PAGE))
    offset: int | None = attrs.field(default=None, validator=[not_negative, fits])


@attrs.frozen
class HistoryPage:
    """Of `session/history`."""

    session_id: str
    offset: int = attrs.field(default=0, validator=[not_negative, fits])
    limit: int | None = attrs.field(default=None, validator=Between(1, MAX_PAGE))


def bare_schema(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a schema without Meerkat's wrapper `{schema, name, strict, compat, format}`, where it has one."""
    inner = None if schema is None or not schema.keys() <= WRAPPER else schema.get("schema")
    return inner if isinstance(inner, dict) else schema


def text_of(prompt: object, path: str = "$.prompt") -> str:
    """Return the text of a prompt, which may come in blocks. Raises InvalidParamsError for what is no text."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        raise _bad(path, "must be a string or a list of content blocks")
    return "".join(_block_text(f"{path}[{index}]", block) for index, block in enumerate(prompt))


def _block_text(path: str, block: object) -> str:
    if not isinstance(block, dict) or block.get("type") != "text":
        raise _bad(path, "only text blocks are supported")
    if not isinstance(block.get("text"), str):
        raise _bad(f"{path}.text", "must be a string")
    return str(block["text"])


def _seconds(duration: object) -> float | None:
    path = "$.budget_limits.max_duration"
    parts = duration if isinstance(duration, dict) else {"secs": duration}
    numbers: list[Any] = [parts.get("secs"), parts.get("nanos", 0)]
    if duration is None:
        return None
    if not all(type(number) in (int, float) and 0 <= number <= LARGEST for number in numbers):
        raise _bad(path, "must be seconds, or {secs, nanos}")
    seconds = float(numbers[0] + numbers[1] / NANOSECONDS)
    if seconds == 0:
        raise _bad(path, "must be above 0")
    return seconds


def _bad(path: str, problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"{path}: {problem}", path=path)
