"""`Agent`: instructions, a model, tools and bounds under a name, as a value that sessions are made of."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Self, overload

import attrs

from warren.agents.hooks import Hooks, name_of
from warren.agents.spec import AgentSpec, provider_of
from warren.base.errors import InvalidParamsError
from warren.base.fields import NAME, FieldValueError, InstanceOf, is_name, is_text, text_problem
from warren.base.values import frozen
from warren.conversation import aliases
from warren.conversation.agents import AgentPin
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.conversation.options import DEFAULTS, CompactionConfig, SessionOptions, check_sizes, given
from warren.conversation.views import SessionView
from warren.models.model import Provider
from warren.models.tools import Tool, ToolError, tool
from warren.structured.types import TypedShape, described

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T")
V = TypeVar("V")

OF_AGENT: Final[Mapping[str, str]] = {
    "model": "model",
    "fallback": "model",
    "tools": "tools",
    "budget": "budget",
    "approvals": "gates",
    "compaction": "compaction",
}
"""Options of sessions that an agent has as a field of its own, by the names of these fields."""


Instruct = Callable[[SessionView], str | Awaitable[str]]
"""A function that returns the instructions of the next turn of a session, which is as of its last finished turn."""


def _in_row(value: Any) -> Any:
    """Return one model as a list of it, and a list as a tuple; the validator sees to any other value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _are_models(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[object, ...]) -> None:
    for index, each in enumerate(value):
        name = attribute.name if len(value) == 1 else f"{attribute.name}[{index}]"
        if isinstance(each, str):
            if not each.strip():
                raise FieldValueError(name, "must not be empty")
        elif index:
            raise FieldValueError(name, "must be the name of a model: only the first may be a provider of your own")
        elif not callable(getattr(each, "complete", None)):
            raise FieldValueError(name, "must be the name of a model, or a provider of your own")


def _are_tools(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if type(value) is not tuple:
        raise FieldValueError(attribute.name, "must be a list")
    seen = set[str]()
    for index, each in enumerate(value):
        if not isinstance(each, str | Tool):
            problem = "must be a tool, as `warren.tool` makes one, or the name of one of the runtime"
            raise FieldValueError(f"{attribute.name}[{index}]", problem)
        name = _name_of(each)
        if name in seen:
            raise FieldValueError(f"{attribute.name}[{index}]", f"is another tool named {name!r}")
        seen.add(name)


def _are_agents(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if type(value) is not tuple:
        raise FieldValueError(attribute.name, "must be a list")
    for index, each in enumerate(value):
        if not isinstance(each, Agent):
            raise FieldValueError(f"{attribute.name}[{index}]", "must be a warren.Agent")


def _are_hooks(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    check_hooks(value, attribute.name)


def check_hooks(hooks: object, field: str) -> None:
    """Refuse what is no list of hooks. Raises FieldValueError."""
    if type(hooks) is not tuple:
        raise FieldValueError(field, "must be a list")
    for index, each in enumerate(hooks):
        if not isinstance(each, Hooks):
            cure = " (an object of the class, not the class)" if isinstance(each, type) else ""
            raise FieldValueError(f"{field}[{index}]", f"must be a warren.Hooks{cure}")
        if each.on_failure not in ("deny", "allow"):
            raise FieldValueError(f"{field}[{index}].on_failure", "must be 'deny' or 'allow'")
        if not 0 < each.timeout <= MOST_SECONDS:
            raise FieldValueError(f"{field}[{index}].timeout", f"must be above 0, and at most {MOST_SECONDS} seconds")


def _name_of(tool: str | Tool) -> str:
    return aliases.TOOLS.get(tool, tool) if isinstance(tool, str) else tool.spec.name


def _are_instructions(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not callable(value):
        is_text(_instance, attribute, value)


MOST_SECONDS: Final = 86_400
"""Seconds that a method of a hook may take at most."""


def _row_of_tools(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


@frozen
class Agent(Generic[T]):
    """An agent: instructions, a model, tools and bounds under a name.

    Give agents to `open_supervisor(agents=…)`. Sessions are made of one by its name, on every surface, or by
    `service.session(agent)`. A session keeps the version that it was made with: an agent that changes changes none.

    Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        name: its name: letters, digits, `-` and `_`, 64 at most.
        instructions: the system prompt of its sessions; empty takes the runtime's. A function, async or not, returns
            that of a turn for the session; it is called at the beginning of each, and has ten seconds.
        description: what it is for, in a line.
        model: the model, or a provider of your own; a list has the models that take over behind it. None takes the
            runtime's.
        tools: its tools: functions of yours, and names of tools of the runtime. It has no others: () is none.
        agents: agents whose work it can ask for: `agents=[clerk]` is the same as `clerk.as_tool()` among the tools.
        output_type: the type of its answers, in place of an `output_schema`: a class of attrs, pydantic or msgspec, a
            dataclass, a TypedDict, or a type such as `list[int]`. The `output` of a result is an instance of it. None
            answers with text.
        budget: the limits of a session over all its turns; a caller may only narrow them.
        gates: the kinds of tools whose calls wait for approval; a caller may only be stricter.
        compaction: how its sessions are compacted; None takes the runtime's way.
        hooks: the hooks around what its sessions do, within those of the runtime; the first is the outermost.
        options: all other options of its sessions, such as the temperature or an `output_schema`.
    """

    name: str = attrs.field(validator=is_name)
    instructions: str | Instruct = attrs.field(default="", validator=_are_instructions)
    description: str = attrs.field(default="", validator=is_text, kw_only=True)
    model: tuple[str | Provider, ...] = attrs.field(default=(), converter=_in_row, validator=_are_models, kw_only=True)
    tools: tuple[str | Tool, ...] = attrs.field(default=(), converter=_row_of_tools, validator=_are_tools, kw_only=True)
    agents: "tuple[Agent[Any], ...]" = attrs.field(
        default=(), converter=_row_of_tools, validator=_are_agents, kw_only=True
    )
    output_type: type[T] | None = attrs.field(default=None, kw_only=True)
    budget: Budget | None = attrs.field(default=None, validator=InstanceOf(Budget), kw_only=True)
    gates: Gates | None = attrs.field(default=None, validator=InstanceOf(Gates), kw_only=True)
    compaction: CompactionConfig | None = attrs.field(
        default=None, validator=InstanceOf(CompactionConfig), kw_only=True
    )
    hooks: tuple[Hooks, ...] = attrs.field(default=(), converter=_row_of_tools, validator=_are_hooks, kw_only=True)
    options: SessionOptions = attrs.field(default=DEFAULTS, validator=InstanceOf(SessionOptions), kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse what only the fields together show. Raises FieldValueError."""
        if self.agents:
            _check_names(self.tools, self.agents)
        there = given(SessionOptions, self.options)
        for option, field in OF_AGENT.items():
            if option in there:
                raise FieldValueError(f"options.{option}", f"is the field `{field}` of an agent")
        if "peer" in there:
            raise FieldValueError("options.peer", "is the name of one session, and an agent has many")
        if "provider" in there and self.own_model is not None:
            raise FieldValueError("options.provider", "does not go with a provider of your own as the model")
        if self.options.output_schema is not None:
            if self.output_type is not None:
                raise FieldValueError("options.output_schema", "does not go with an `output_type`")
            _check_schema("options.output_schema", self.options.output_schema)
        if self.shape is not None:
            _check_schema("output_type", self.shape.schema)
        check_sizes(self.spec.options, self.spec.options.tools)
        try:
            self.spec.body.encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise FieldValueError("tools", f"cannot be written as JSON: {exc}") from None

    @overload
    def with_(self, *, output_type: type[V], **changes: Any) -> "Agent[V]": ...
    @overload
    def with_(self, **changes: Any) -> Self: ...
    def with_(self, **changes: Any) -> "Agent[Any]":
        """Return the agent with other values of some fields; it is checked again. Raises FieldValueError."""
        return attrs.evolve(self, **changes)

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> Tool[..., Any]:
        """Return the agent as a tool of other agents: `Agent(tools=[clerk.as_tool()])`.

        A call makes a child session of the agent with the `prompt` of the call, and its answer is the result; that of
        an agent with an output type is JSON. The kind of the tool is `comms`.

        Args:
            name: the name of the tool; None takes that of the agent.
            description: what the asking model is told; None takes the description of the agent.

        Raises:
            FieldValueError: if a value is bad.
        """
        if name is not None and (type(name) is not str or not NAME.fullmatch(name)):
            raise FieldValueError("name", "must be 1 to 64 letters, digits, `-` and `_`, and begin with no mark")
        if description is not None and (problem := text_problem(description)) is not None:
            raise FieldValueError("description", problem)
        told = description or self.description or f"Have the agent {self.name} do a piece of work, and get its answer."
        made = _asked()
        spec = attrs.evolve(made.spec, name=name or self.name, description=told)
        return attrs.evolve(made, spec=spec, agent=self)

    @cached_property
    def all_tools(self) -> tuple[str | Tool, ...]:
        """Its tools, with the agents that are some."""
        return (*self.tools, *[each.as_tool() for each in self.agents]) if self.agents else self.tools

    @cached_property
    def workers(self) -> "tuple[Agent[Any], ...]":
        """The agents among its tools."""
        return tuple([each.agent for each in self.functions.values() if each.agent is not None])

    @cached_property
    def shape(self) -> TypedShape[T] | None:
        """How data becomes its answers; None if they are of no type. Raises FieldValueError if that has no JSON."""
        if self.output_type is None:
            return None
        try:
            return described(self.output_type)
        except TypeError as exc:
            raise FieldValueError("output_type", str(exc)) from None

    @property
    def own_model(self) -> Provider | None:
        """The provider of the program that is its model; None if its model has a name."""
        first = self.model[0] if self.model else None
        return None if isinstance(first, str) else first

    @cached_property
    def functions(self) -> Mapping[str, Tool]:
        """Its tools that are functions, by name."""
        return {each.spec.name: each for each in self.all_tools if isinstance(each, Tool)}

    @cached_property
    def spec(self) -> AgentSpec:
        """All of it that is data: what is stored, and what its version is made of."""
        own, names = self.own_model, [each for each in self.model if isinstance(each, str)]
        options = attrs.evolve(
            self.options,
            model=(names[0] if names else None) if own is None else type(own).__name__,
            provider=self.options.provider if own is None else provider_of(self.name),
            fallback=tuple(names if own is not None else names[1:]) or None,
            tools=tuple(map(_name_of, self.all_tools)),
            budget=self.budget,
            approvals=self.gates,
            compaction=self.compaction,
            output_schema=self.options.output_schema if self.shape is None else self.shape.schema,
        )
        functions = tuple([each.spec for each in self.functions.values()])
        text, made_by = self.instructions, None
        if not isinstance(text, str):
            text, made_by = "", _place_of(text)
        hooks = tuple(map(name_of, self.hooks))
        agents = tuple([each.pin.ref for each in self.workers])
        return AgentSpec(self.name, self.description, text, options, functions, made_by, hooks, agents)

    @property
    def version(self) -> str:
        """The SHA-256 of its `spec`, 64 hexadecimal digits; the same in every process."""
        return self.spec.version

    @property
    def pin(self) -> AgentPin:
        """The version as its sessions keep it."""
        return self.spec.pin

    def under(self, asked: SessionOptions) -> SessionOptions:
        """Return the options of a session of the agent for a caller who asks for some.

        The caller's options of the model win; budgets and gates can only be narrowed.
        """
        if asked is DEFAULTS:
            return self.spec.options
        own, wanted = self.spec.options, given(SessionOptions, asked)
        if "model" in wanted and "provider" not in wanted:
            wanted["provider"] = None
        if own.budget is not None:
            wanted["budget"] = own.budget.within(asked.budget)
        if own.approvals is not None:
            wanted["approvals"] = own.approvals.and_(asked.approvals)
        return attrs.evolve(own, **wanted)


def _check_names(tools: tuple[str | Tool, ...], agents: "tuple[Agent[Any], ...]") -> None:
    names = {_name_of(each) for each in tools}
    for index, each in enumerate(agents):
        if each.name in names:
            raise FieldValueError(f"agents[{index}]", f"has the name of another tool: {each.name!r}")
        names.add(each.name)


async def _ask_nobody(
    prompt: Annotated[str, "what to do, with all that has to be known for it: the agent sees nothing of this session"],  # noqa: ARG001 - see `_asked`
) -> str:
    raise ToolError("an agent works only for sessions of an agent that has it among its tools")


@cache
def _asked() -> Tool[..., Any]:
    """Return the tool of all agents, which a runtime binds to its sessions. Its schema takes time: it is made once."""
    return tool(description="", category="comms", restart="replay")(_ask_nobody)


def with_workers(
    agents: Iterable[Agent[Any]], tenants: Mapping[str, Collection[str]]
) -> tuple[tuple[Agent[Any], ...], Mapping[str, tuple[str, ...]]]:
    """Return some agents with those among their tools, and the tenants that know each, unless all do.

    An agent that is only a tool is known to those who know an agent that has it.
    """
    found, known = list(agents), {name: tuple(each) for name, each in tenants.items()}
    given = {each.name for each in found}
    to_all, to_some = set[str](), dict[str, set[str]]()
    for agent in found:  # grows meanwhile
        own = known.get(agent.name) if agent.name in given else to_some.get(agent.name)
        for worker in agent.workers:
            if own is None or agent.name in to_all:
                to_all.add(worker.name)
            else:
                to_some.setdefault(worker.name, set()).update(own)
            found.append(worker)
    inherited = {name: tuple(sorted(each)) for name, each in to_some.items() if name not in {*given, *to_all}}
    distinct = list[Agent[Any]]()
    for agent in found:
        if agent not in distinct:
            distinct.append(agent)
    return tuple(distinct), {**inherited, **known}


def _check_schema(field: str, schema: Any) -> None:
    from warren.structured.output import checked_schema  # noqa: PLC0415 - few agents have one

    try:
        checked_schema(schema, root=field)
    except InvalidParamsError as exc:
        found, _, problem = exc.message.partition(": ")
        raise FieldValueError(found, problem) from None


def _place_of(function: object) -> str:
    """Return the module and the name of a function, or of the class of an object that is called."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def check_together(agents: object) -> None:
    """Refuse values other than agents, and two that differ and have one name. Raises FieldValueError."""
    if type(agents) is not tuple:
        raise FieldValueError("agents", "must be a list")
    found = dict[str, Agent[Any]]()
    for index, each in enumerate(agents):
        if not isinstance(each, Agent):
            raise FieldValueError(f"agents[{index}]", "must be a warren.Agent")
        for one in with_workers((each,), {})[0]:
            known = found.setdefault(one.name, one)
            if known != one:
                field = f"agents[{index}].{'name' if one is each else 'tools'}"
                raise FieldValueError(field, f"{one.name!r} is the name of another agent: {known.pin}")
