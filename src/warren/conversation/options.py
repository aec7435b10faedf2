"""The options of sessions and turns: name, type, bounds, default and sentence of each stand here, and only here.

Every surface is made from these classes: the keywords of `SessionService`, the parameters of JSON-RPC, REST and MCP,
flags of the command line, settings of the configuration file, what a store keeps of a session, and the pages. Each
value checks itself. A new option is a field here and, if it changes a request to a model, a line in each provider's
protocol.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from datetime import datetime
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args

import attrs

from warren.base.fields import (
    CAN_CONFLICT,
    AtMost,
    Between,
    FieldValueError,
    InstanceOf,
    Labels,
    OneOf,
    fits,
    is_flag,
    is_moment,
    is_name,
    is_object,
    is_text,
    is_whole,
    not_blank,
    not_negative,
    optional,
    positive,
)
from warren.base.values import Checked, frozen
from warren.conversation import aliases
from warren.conversation.attachments import File, are_files
from warren.conversation.budget import Budget
from warren.conversation.categories import CATEGORIES, INHERIT, Gates, Switches
from warren.conversation.peers import Peer

T = TypeVar("T")
TurnMode = Literal["busy", "queue", "steer"]
MODES: Final[tuple[TurnMode, ...]] = get_args(TurnMode)
Durability = Literal["step", "turn"]
DURABILITIES: Final[tuple[Durability, ...]] = get_args(Durability)
CacheTime = Literal["off", "5m", "1h"]
CACHE_TIMES: Final[tuple[CacheTime, ...]] = get_args(CacheTime)
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""The levels of reasoning, in rising order; a provider that has fewer is asked for its nearest one."""
RETRIES: Final = 2
"""How often an answer that does not fit its schema is tried again, unless somebody says otherwise."""
MAX_RETRIES: Final = 10
MAX_KEY: Final = 200
"""Characters of an idempotency key."""
MAX_TITLE: Final = 200
"""Characters of a title that a host gives."""
HOSTED: Final = re.compile(r"[A-Za-z0-9_]{1,100}", re.ASCII)
"""Names of tools that providers run themselves."""


def in_row(value: Any) -> Any:
    """Return a list as a tuple, and any other value as it is: the validator sees to it."""
    return tuple(value) if type(value) is list else value


MAX_FALLBACK: Final = 16
MAX_TOOLS: Final = 1_000
MAX_HOSTED: Final = 64


def are_names(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values other than lists of texts; None passes."""
    if value is None:
        return
    if type(value) is not tuple:
        raise FieldValueError(attribute.name, "must be a list")
    for index, name in enumerate(value):
        if type(name) is not str:
            raise FieldValueError(f"{attribute.name}[{index}]", "must be a string")


def hosted(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values other than objects under names of hosted tools; None passes."""
    is_object(instance, attribute, value)
    for name, inner in () if value is None else value.items():
        if type(name) is not str or not HOSTED.fullmatch(name):
            raise FieldValueError(f"{attribute.name}.{name}", "is no name of letters, digits and `_`")
        if not isinstance(inner, Mapping):
            raise FieldValueError(f"{attribute.name}.{name}", "must be an object")


def _files(value: Sequence[File]) -> tuple[File, ...]:
    if not isinstance(value, list | tuple):
        raise FieldValueError("attachments", "must be a list")
    return tuple(value)


def _retries(value: int | None) -> int | None:
    return RETRIES if value is None else value


DEFAULT_THRESHOLD: Final = 100_000


@frozen
class CompactionConfig:
    """The threshold and the size of compactions.

    Attributes:
        auto_compact_threshold: tokens from which on a compaction is due; None is 100,000. If the model's window is
            known, it is at most 80 % of that, and less if the cap of answers or tools take much of it.
        recent_turn_budget: complete exchanges that are kept; fewer if so many would leave the history too large.
        max_summary_tokens: cap of the summary in tokens; at most a quarter of a known window.
        min_turns_between_compactions: steps (model calls) from one attempt to the next.
        window: tokens that a request may have; None looks up the model's name, and an unknown model has no limit.
    """

    auto_compact_threshold: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    recent_turn_budget: int = attrs.field(default=4, validator=[is_whole, not_negative, fits])
    max_summary_tokens: int = attrs.field(default=4096, validator=[is_whole, positive, fits])
    min_turns_between_compactions: int = attrs.field(default=3, validator=[is_whole, not_negative, fits])
    window: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))


@frozen(kw_only=True)
class ModelOptions(Checked):
    """Options of every call of the model; None leaves an option to the next level: turn, session, runtime, provider.

    Attributes:
        max_tokens: cap of one answer, in tokens.
        temperature: sampling temperature: 0 for the likeliest words, more for more variety. Some models allow less than
            2, or no temperature at all.
        top_p: share of the probability among whose likeliest words the model chooses. Use this or the temperature.
        prompt_cache: how long Anthropic keeps a request for the next one, which reads it at a part of the price: 5m,
            1h at a higher price of writing, or off; 5m by default. OpenAI keeps requests by itself, and off only sends
            it no key of the session.
        effort: how much the model reasons before it answers; `none` turns reasoning off.
        reasoning_tokens: cap of the reasoning of one answer, in tokens. Use this or the effort. Some models have none.
        fallback: models that take over, in this order, while the model is overloaded or away.
        hosted_tools: tools that the provider runs itself, by their names there, each with its settings, which are
            passed on as they are: {"web_search": {}} for one that most providers have; {} for none.
    """

    max_tokens: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    temperature: float | None = attrs.field(default=None, validator=Between(0, 2), metadata=CAN_CONFLICT)
    top_p: float | None = attrs.field(default=None, validator=Between(0, 1, without_low=True))
    prompt_cache: CacheTime | None = attrs.field(default=None, validator=optional(OneOf(CACHE_TIMES)))
    effort: Effort | None = attrs.field(default=None, validator=optional(OneOf(EFFORTS)), metadata=CAN_CONFLICT)
    reasoning_tokens: int | None = attrs.field(
        default=None, validator=optional(is_whole, positive, fits), metadata=CAN_CONFLICT
    )
    fallback: tuple[str, ...] | None = attrs.field(
        default=None, converter=in_row, validator=are_names, metadata=CAN_CONFLICT
    )
    hosted_tools: Mapping[str, Any] | None = attrs.field(default=None, validator=hosted, metadata=CAN_CONFLICT)

    def over(self, *above: "ModelOptions") -> "ModelOptions":
        """Return these options; those that are None are as the first of the levels above has them."""
        levels = zip(*map(_model_options, (self, *above)), strict=True)
        nearest = zip(MODEL_OPTIONS, map(_nearest, levels), strict=True)
        found = {name: value for name, value in nearest if value is not None}
        return ModelOptions(**found) if found else _UNSET


def check_sizes(options: ModelOptions, tools: Sized | None = None) -> None:
    """Refuse more models, hosted tools and names of tools than anybody may ask for.

    The options themselves do not: a store may have sessions and inputs of a version without these bounds.

    Raises FieldValueError that names the field.
    """
    if not (options.fallback or options.hosted_tools or tools):
        return
    for name, asked, most in (
        ("fallback", options.fallback, MAX_FALLBACK),
        ("hosted_tools", options.hosted_tools, MAX_HOSTED),
        ("tools", tools, MAX_TOOLS),
    ):
        if asked is not None and len(asked) > most:
            raise FieldValueError(name, f"must have at most {most} entries, and has {len(asked)}")


MODEL_OPTIONS: Final = tuple(attrs.fields_dict(ModelOptions))
_model_options: Final = attrgetter(*MODEL_OPTIONS)
_UNSET: Final = ModelOptions()


def _nearest(levels: Iterable[Any]) -> Any:
    """Return the first value that is not None; None if there is none."""
    for value in levels:
        if value is not None:
            return value
    return None


@frozen
class OutputWish:
    """The data that a turn's answer is brought into.

    Attributes:
        schema: the JSON schema, one that `checked_schema` has let through.
        retries: how often an answer that does not fit is tried again.
    """

    schema: Mapping[str, Any]
    retries: int


@frozen(kw_only=True)
class TurnOptions(ModelOptions):
    """Options of one turn; None takes the session's.

    Attributes:
        model: the model to call; null takes the session's, or the runtime's.
        provider: its provider. Null takes the session's, and the runtime's (`--provider`) for a new session or a turn
            that names a model; without one the model's name decides.
        budget: limits: of the session over all its turns if it is created with them, else of the turn.
        overrides: which kinds of tools the model is offered; null leaves that to the session, and then to the runtime.
        approvals: which kinds of tools wait for `tool/approve`, besides those that do anyway.
        output_schema: JSON schema that the answer is to fit, as `structured_output`.
        structured_output_retries: how often an answer that does not fit it is tried again.
        keep_alive: whether a peer's message begins a turn while none runs, from the end of this turn on; null leaves
            that as the session has it. A session without a name among peers gets no messages.
        durability: when a turn is stored: `step` stores each step of a turn with tool calls, and the turn goes on if
            its process ends; `turn` stores it whole at its end. Null leaves that to the session, and then to the
            runtime. It has no effect without a store.
    """

    model: str | None = attrs.field(default=None, validator=optional(is_text, not_blank), metadata=CAN_CONFLICT)
    provider: str | None = attrs.field(default=None, validator=optional(is_text, not_blank), metadata=CAN_CONFLICT)
    budget: Budget | None = attrs.field(default=None, validator=InstanceOf(Budget), metadata=CAN_CONFLICT)
    overrides: Switches | None = attrs.field(default=None, validator=InstanceOf(Switches), metadata=CAN_CONFLICT)
    approvals: Gates | None = attrs.field(default=None, validator=InstanceOf(Gates))
    output_schema: Mapping[str, Any] | None = attrs.field(default=None, validator=is_object)
    structured_output_retries: int | None = attrs.field(
        default=None, validator=optional(is_whole, Between(0, MAX_RETRIES))
    )
    keep_alive: bool | None = attrs.field(default=None, validator=optional(is_flag))
    durability: Durability | None = attrs.field(default=None, validator=optional(OneOf(DURABILITIES)))

    def output(self, session: "SessionOptions") -> OutputWish | None:
        """Return the data that a turn with these options is to answer with; None for none."""
        schema = _nearest((self.output_schema, session.output_schema))
        if schema is None:
            return None
        return OutputWish(schema, _nearest((self.structured_output_retries, session.structured_output_retries)))

    def switched(self, session: "SessionOptions", runtime: Switches) -> Switches:
        """Return which kinds of tools a turn with these options is offered."""
        return (self.overrides or INHERIT).over(session.overrides).over(runtime)

    def gated(self, session: "SessionOptions", runtime: Gates) -> Gates:
        """Return which kinds of tools need approval in a turn with these options."""
        return runtime.and_(session.approvals).and_(self.approvals)

    def keeps_steps(self, session: "SessionOptions", runtime: Durability) -> bool:
        """Tell whether a turn with these options is to be stored step by step."""
        return (self.durability or session.durability or runtime) == "step"

    def check_kinds(self, there: Collection[str]) -> None:
        """Refuse to enable a kind of tools that is not there. Raises InvalidParamsError."""
        switches = self.overrides or INHERIT
        for category in CATEGORIES:
            if switches.of(category) == "enable" and category not in there:
                raise FieldValueError(f"overrides.{category}", f"this runtime has no {category} tools").refusal()


NO_OPTIONS: Final = TurnOptions()
_turn_options: Final = attrgetter(*attrs.fields_dict(TurnOptions))
_NONE_GIVEN: Final = _turn_options(NO_OPTIONS)


def turn_options(request: TurnOptions) -> TurnOptions:
    """Return the options alone of a value that has more fields; `NO_OPTIONS` if it gives none of them."""
    return NO_OPTIONS if _turn_options(request) == _NONE_GIVEN else part(TurnOptions, request)


@frozen(kw_only=True)
class SessionOptions(TurnOptions):
    """Options that hold for all turns of a session, unless a turn says otherwise; they are stored with it.

    Attributes:
        structured_output_retries: how often an answer that does not fit it is tried again; null is the default too.
        keep_alive: whether a peer's message begins a turn while none runs; null is as `peer.keep_alive` has it.
        tools: names of the tools that its model sees, of all that Warren runs for it: those for messages to peers and
            the search of the memory stay away too unless they are named. Null offers all that there are.
        peer: its name among other sessions, whose messages it takes, and whether these begin turns; null has none.
        compaction: how its context is compacted; null takes the runtime's way.
    """

    structured_output_retries: int | None = attrs.field(
        default=RETRIES, converter=_retries, validator=[is_whole, Between(0, MAX_RETRIES)]
    )
    tools: tuple[str, ...] | None = attrs.field(default=None, validator=are_names, metadata=CAN_CONFLICT)
    peer: Peer | None = attrs.field(default=None, validator=InstanceOf(Peer), metadata=CAN_CONFLICT)
    compaction: CompactionConfig | None = attrs.field(default=None, validator=InstanceOf(CompactionConfig))

    @property
    def wakes(self) -> bool:
        """Whether a peer's message begins a turn while none runs."""
        return self.peer is not None and (self.peer.keep_alive if self.keep_alive is None else self.keep_alive)

    @cached_property
    def of_calls(self) -> ModelOptions:
        """The options of each call of the model in a turn that brings no options of its own."""
        return self.over()

    @cached_property
    def handed_down(self) -> "SessionOptions":
        """The options of the session's children that a turn makes which brings no options of its own."""
        return handed_down(self, NO_OPTIONS)

    @cached_property
    def stored(self) -> Mapping[str, Any]:
        """The options that are not at their defaults, by name: all of them that a store keeps."""
        return given(SessionOptions, self)


DEFAULTS: Final = SessionOptions()


def handed_down(session: SessionOptions, asked: TurnOptions) -> SessionOptions:
    """Return the options of the children that a turn of a session makes: those of the turn, and never more."""
    return SessionOptions(
        **given(ModelOptions, session.of_calls if asked is NO_OPTIONS else asked.over(session)),
        provider=asked.provider or session.provider,
        overrides=(asked.overrides or INHERIT).over(session.overrides),
        approvals=Gates().and_(session.approvals).and_(asked.approvals),
        durability=asked.durability or session.durability,
        tools=session.tools,
        compaction=session.compaction,
    )


def session_options(request: SessionOptions, tools: tuple[str, ...] | None) -> SessionOptions:
    """Return the options alone of a value that has more fields, with other tools; `DEFAULTS` if it gives none."""
    return part(SessionOptions, request, tools=tools) if given(SessionOptions, request) else DEFAULTS


AGENTS_OWN: Final = ("system_prompt", "tools", "overrides", "hosted_tools", "output_schema")
"""Options of sessions that a caller who names an agent cannot give."""


@frozen(kw_only=True)
class SessionTemplate(SessionOptions):
    """All that sessions are made with, besides their first prompts.

    Attributes:
        agent: the name of the agent that it is made of. The other options may narrow the agent's budget and approvals,
            and change those of the model; tools and instructions are the agent's own.
        system_prompt: system prompt: instructions for the model; null takes the runtime's.
        labels: marks of your own, for `session/list`.
        title: the session's name for people; null takes the first words of its first prompt.
    """

    agent: str | None = attrs.field(default=None, validator=optional(is_name), metadata=CAN_CONFLICT)
    system_prompt: str | None = attrs.field(default=None, validator=optional(is_text))
    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels())
    title: str | None = attrs.field(default=None, validator=optional(is_text, not_blank, AtMost(MAX_TITLE)))

    def __attrs_post_init__(self) -> None:
        """Refuse options that an agent has of its own beside one. Raises FieldValueError."""
        super().__attrs_post_init__()
        if self.agent is not None:
            for name in AGENTS_OWN:
                if getattr(self, name) is not None:
                    raise FieldValueError(name, "does not go with `agent`, which has its own")


@frozen
class SessionRequest(SessionTemplate):
    """A session to create.

    Attributes:
        prompt: the user's words; null creates the session without a turn.
        attachments: files that the prompt is about.
        idempotency_key: of your own: a request that is sent again under the same key creates no second session, and has
            the result of the first; other parameters under a key that was used are refused.
    """

    ALIASES: ClassVar[Mapping[str, str]] = aliases.SESSION_OPTIONS
    prompt: str | None = attrs.field(validator=optional(is_text, not_blank))
    attachments: tuple[File, ...] = attrs.field(
        default=(), converter=_files, validator=are_files, kw_only=True, metadata=CAN_CONFLICT
    )
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True, metadata=CAN_CONFLICT
    )

    def __attrs_post_init__(self) -> None:
        """Refuse files without a prompt, and too many names. Raises FieldValueError."""
        super().__attrs_post_init__()
        check_sizes(self, self.tools)
        if self.attachments and self.prompt is None:
            raise FieldValueError("attachments", "need a prompt")


@frozen
class TurnRequest(TurnOptions):
    """A turn to run; its options hold for this turn alone.

    Attributes:
        session_id: the session.
        prompt: the user's words.
        attachments: files that the prompt is about.
        mode: while another turn runs, `busy` fails at once, `queue` waits for its end and then begins a turn, and
            `steer` enters it at its next step; the result is that of the turn which takes the prompt.
        idempotency_key: of your own, for the modes that wait: a prompt that is sent again under the same key is not
            taken twice, and has the result of the first.
        not_before: a time before which no turn takes the prompt, for the mode `queue`. Others go before it till then,
            and without others the session is idle. If the time is past, the prompt is due at once.
    """

    ALIASES: ClassVar[Mapping[str, str]] = aliases.TURN_OPTIONS
    session_id: str = attrs.field(validator=is_text)
    prompt: str = attrs.field(validator=[is_text, not_blank])
    attachments: tuple[File, ...] = attrs.field(
        default=(), converter=_files, validator=are_files, kw_only=True, metadata=CAN_CONFLICT
    )
    mode: TurnMode = attrs.field(default="busy", validator=OneOf(MODES), kw_only=True)
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True, metadata=CAN_CONFLICT
    )

    not_before: datetime | None = attrs.field(
        default=None, validator=optional(is_moment), kw_only=True, metadata=CAN_CONFLICT
    )

    def __attrs_post_init__(self) -> None:
        """Refuse a key or a time for a prompt that does not wait, and too many names. Raises FieldValueError."""
        super().__attrs_post_init__()
        check_sizes(self)
        if self.idempotency_key is not None and self.mode == "busy":
            raise FieldValueError("idempotency_key", "is for the modes queue and steer")
        if self.not_before is not None and self.mode != "queue":
            raise FieldValueError("not_before", "is for the mode queue")


def part(cls: type[T], options: object, **changes: Any) -> T:
    """Return the fields of one class of options that another value has as well, with some changes."""
    return cls(**{name: getattr(options, name) for name in attrs.fields_dict(cls)} | changes)  # type: ignore[arg-type]


def given(cls: type, options: object) -> dict[str, Any]:
    """Return the values of the fields of a class of options that are not at their defaults, by name."""
    return {name: value for name, default in _defaults(cls) if (value := getattr(options, name)) != default}


@cache
def _defaults(cls: type) -> Sequence[tuple[str, Any]]:
    return [(field.name, field.default) for field in attrs.fields(cls)]
