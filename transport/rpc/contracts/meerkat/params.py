"""The parameters of Meerkat's methods, and their translation into those of Warren."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import LARGEST, Between, FieldValueError, fits, not_negative, positive
from warren.base.values import frozen
from warren.calls.base import MAX_PAGE
from warren.calls.turns import SessionCall, TurnCall
from warren.conversation.aliases import SWITCHES
from warren.conversation.budget import Budget
from warren.conversation.categories import INHERIT, Switches
from warren.models.tools import ToolSpec

BLANK_LINE: Final = "\n\n"
ALIASES: Final[Mapping[str, str]] = {f"override_{kind}": f"enable_{kind}" for kind in ("builtins", "shell", "memory")}
NOT_SUPPORTED: Final = "is not supported by this server: leave it out"
WRAPPER_FIELDS: Final = frozenset({"schema", "name", "strict", "compat", "format"})
NANOSECONDS: Final = 1e9


def _not_supported(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse a value, other than an empty one, of a field that only Meerkat has."""
    if value not in (None, False, [], {}):
        raise FieldValueError(attribute.name, NOT_SUPPORTED)


@frozen
class BudgetLimits:
    """Limits of a session; `max_duration` is in seconds, or `{secs, nanos}`."""

    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_duration: Any = None
    max_tool_calls: int | None = attrs.field(default=None, validator=[positive, fits])

    def budget(self) -> Budget:
        """Return the limits as a Budget. Raises InvalidParamsError."""
        return Budget(self.max_tokens, _seconds(self.max_duration), self.max_tool_calls)


@frozen(kw_only=True)
class _TurnParams:
    """The options of a turn, with those of a new session or for one turn. What Warren does not support is refused."""

    ALIASES: ClassVar[Mapping[str, str]] = ALIASES

    prompt: Any
    model: str | None = None
    provider: str | None = None
    max_tokens: int | None = None
    additional_instructions: tuple[str, ...] | None = None
    session_events: bool | None = None
    keep_alive: bool | None = None
    host_mode: bool | None = None
    enable_memory: bool | None = None
    structured_output_retries: int | None = None
    output_schema: Mapping[str, Any] | None = None
    enable_builtins: bool | None = None
    enable_shell: bool | None = None
    provider_params: Any = attrs.field(default=None, validator=_not_supported)
    auth_binding: Any = attrs.field(default=None, validator=_not_supported)
    skill_refs: Any = attrs.field(default=None, validator=_not_supported)
    skill_references: Any = attrs.field(default=None, validator=_not_supported)
    injected_context: Any = attrs.field(default=None, validator=_not_supported)
    transient_turn_context: Any = attrs.field(default=None, validator=_not_supported)

    def options(self) -> dict[str, Any]:
        """Return the options as the service has them."""
        switches = Switches(builtins=SWITCHES[self.enable_builtins], shell=SWITCHES[self.enable_shell])
        return {
            "model": self.model,
            "provider": self.provider,
            "max_tokens": self.max_tokens,
            "output_schema": unwrapped_schema(self.output_schema),
            "structured_output_retries": self.structured_output_retries,
            "overrides": None if switches == INHERIT else switches,
            # In older versions the field was `host_mode`.
            "keep_alive": self.host_mode if self.keep_alive is None else self.keep_alive,
        }


@frozen(kw_only=True)
class CreateParams(_TurnParams):
    """Parameters of `session/create`. Fields that Warren does not support are refused by name."""

    system_prompt: str | None = None
    labels: Mapping[str, str] | None = None
    budget_limits: BudgetLimits | None = None
    external_tools: tuple[ToolSpec, ...] | None = None
    initial_turn: Literal["run_immediately", "deferred"] = "run_immediately"
    app_context: Any = None
    enable_schedule: Any = attrs.field(default=None, validator=_not_supported)
    enable_workgraph: Any = attrs.field(default=None, validator=_not_supported)
    enable_subagents: Any = attrs.field(default=None, validator=_not_supported)
    enable_mob: Any = attrs.field(default=None, validator=_not_supported)
    enable_web_search: Any = attrs.field(default=None, validator=_not_supported)
    hooks_override: Any = attrs.field(default=None, validator=_not_supported)
    comms_name: Any = attrs.field(default=None, validator=_not_supported)
    peer_meta: Any = attrs.field(default=None, validator=_not_supported)
    preload_skills: Any = attrs.field(default=None, validator=_not_supported)
    shell_env: Any = attrs.field(default=None, validator=_not_supported)

    def request(self) -> SessionCall:
        """Return the request of the service, with its bounds. Raises InvalidParamsError and FieldValueError."""
        prompt = text_of(self.prompt)
        parts = [self.system_prompt, *(self.additional_instructions or ())]
        return SessionCall(
            prompt=None if self.initial_turn == "deferred" else prompt,
            system_prompt=BLANK_LINE.join(part for part in parts if part) or None,
            labels=self.labels,
            budget=None if self.budget_limits is None else self.budget_limits.budget(),
            **self.options(),
        )


@frozen(kw_only=True)
class StartParams(_TurnParams):
    """Parameters of `turn/start`. Fields that Warren does not support are refused by name."""

    session_id: str
    system_prompt: Any = attrs.field(default=None, validator=_not_supported)
    self_hosted_server_id: Any = attrs.field(default=None, validator=_not_supported)
    flow_tool_overlay: Any = attrs.field(default=None, validator=_not_supported)
    turn_tool_overlay: Any = attrs.field(default=None, validator=_not_supported)

    def request(self) -> TurnCall:
        """Return the request of the service; instructions for the turn come before its prompt.

        Raises InvalidParamsError.
        """
        prompt = BLANK_LINE.join([*(self.additional_instructions or ()), text_of(self.prompt)])
        return TurnCall(self.session_id, prompt, **self.options())


@frozen
class InitializeParams:
    """Parameters of `initialize`, all optional: Meerkat's own clients send none."""

    client_info: Mapping[str, Any] | None = None
    contract_version: str | None = None


@frozen
class InjectContextParams:
    """Parameters of `session/inject_context`. The text is in `text` or in `content`, depending on the version."""

    session_id: str
    text: str | None = None
    content: Any = None
    source: str | None = None
    idempotency_key: str | None = None

    def context(self, usual: str) -> str:
        """Return the text for the model. Raises InvalidParamsError, for the `usual` field if there is no text."""
        if self.content is None and self.text is None:
            raise InvalidParamsError.at(f"$.{usual}", "is required")
        if self.content is None:
            return self.text or ""
        if self.text is not None:
            raise InvalidParamsError.at("$.text", "must be left out if there is `content`")
        content = self.content
        if isinstance(content, dict) and content.get("type") == "blocks":
            content = content.get("blocks")
        elif isinstance(content, dict):
            content = [content]
        return text_of(content, "$.content")


@frozen
class StreamOpenParams:
    """Parameters of `session/stream_open`."""

    session_id: str


@frozen
class StreamCloseParams:
    """Parameters of `session/stream_close`."""

    stream_id: str


@frozen
class ConfigParams:
    """Parameters of `config/get` and other methods without arguments. Meerkat's clients may send a realm."""

    realm_id: str | None = None


@frozen
class ListParams:
    """Parameters of `session/list`."""

    labels: Mapping[str, str] | None = None
    limit: int | None = attrs.field(default=None, validator=Between(1, MAX_PAGE))
    offset: int | None = attrs.field(default=None, validator=[not_negative, fits])


@frozen
class HistoryParams:
    """Parameters of `session/history`."""

    session_id: str
    offset: int = attrs.field(default=0, validator=[not_negative, fits])
    limit: int | None = attrs.field(default=None, validator=Between(1, MAX_PAGE))


def unwrapped_schema(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a schema, taken out of Meerkat's wrapper `{schema, name, strict, compat, format}` if it is in one."""
    inner = None if schema is None or not schema.keys() <= WRAPPER_FIELDS else schema.get("schema")
    return inner if isinstance(inner, dict) else schema


def text_of(prompt: object, path: str = "$.prompt") -> str:
    """Return the text of a prompt, which may be a list of blocks. Raises InvalidParamsError for other content."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        raise InvalidParamsError.at(path, "must be a string or a list of content blocks")
    return "".join(_block_text(f"{path}[{index}]", block) for index, block in enumerate(prompt))


def _block_text(path: str, block: object) -> str:
    if not isinstance(block, dict) or block.get("type") != "text":
        raise InvalidParamsError.at(path, "only text blocks are supported")
    if not isinstance(block.get("text"), str):
        raise InvalidParamsError.at(f"{path}.text", "must be a string")
    return str(block["text"])


def _seconds(duration: object) -> float | None:
    path = "$.budget_limits.max_duration"
    parts = duration if isinstance(duration, dict) else {"secs": duration}
    numbers: list[Any] = [parts.get("secs"), parts.get("nanos", 0)]
    if duration is None:
        return None
    if not all(type(number) in (int, float) and 0 <= number <= LARGEST for number in numbers):
        raise InvalidParamsError.at(path, "must be seconds, or {secs, nanos}")
    seconds = float(numbers[0] + numbers[1] / NANOSECONDS)
    if seconds == 0:
        raise InvalidParamsError.at(path, "must be above 0")
    return seconds
