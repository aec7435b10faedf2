"""The settings of a runtime, as plain values."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import attrs

from warren.base.backoff import Backoff
from warren.base.database_url import is_database_url, without_password
from warren.base.fields import (
    Between,
    Each,
    FieldValueError,
    OneOf,
    check_types,
    is_flag,
    is_object,
    is_text,
    no_url,
    not_blank,
    not_negative,
    optional,
    positive,
)
from warren.base.nodes import not_empty
from warren.base.principals import TENANT
from warren.base.tenant_limits import TenantLimits
from warren.base.values import frozen
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates, Switches
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import MAX_BLOCKS
from warren.conversation.options import (
    DURABILITIES,
    CompactionConfig,
    Durability,
    ModelOptions,
    SessionOptions,
    check_sizes,
    given,
    in_row,
)
from warren.models.catalog import NO_MODELS, Models
from warren.settings.hook_config import HookEntry
from warren.settings.tool_config import ToolsConfig, web_address

if TYPE_CHECKING:
    from warren.agents.agent import Agent
    from warren.compaction.policy import Compactor, NewCompactor


Synchronous = Literal["FULL", "NORMAL"]
YEAR: Final = 365 * 24 * 3600
"""Seconds that a call may wait for approval at most: its end is a date that is told."""


@frozen
class RetryPolicy:
    """The backoff of failed model calls: delays in seconds that grow by `factor` and are spread by `jitter`.

    A provider's own Retry-After replaces the computed delay.

    Attributes:
        max_attempts: model calls for one answer, the first one included.
        initial_delay: seconds before the second call.
        factor: factor by which the delay grows from one attempt to the next.
        jitter: spread of the delays, as a share of each: at most 1.
        max_delay: the longest computed delay in seconds.
        max_retry_after: the longest Retry-After in seconds; if a provider asks for more, the call fails at once.
        cool_down: seconds for which a model that has failed in all attempts is passed over by sessions with a
            `fallback`. Then one call tries it, and if that fails, it is passed over for twice the time.
    """

    max_attempts: int = attrs.field(default=3, validator=positive)
    initial_delay: float = attrs.field(default=0.5, validator=not_negative)
    factor: float = attrs.field(default=2.0, validator=positive)
    jitter: float = attrs.field(default=0.1, validator=Between(0, 1))
    max_delay: float = attrs.field(default=30.0, validator=not_negative)
    max_retry_after: float = attrs.field(default=60.0, validator=not_negative)
    cool_down: float = attrs.field(default=10.0, validator=not_negative)

    @property
    def backoff(self) -> Backoff:
        """The computed delays."""
        return Backoff(self.initial_delay, self.max_delay, self.factor, self.jitter)


def content_of(max_answer: int) -> int:
    """Return the bytes that the texts and the arguments of an answer may have, by the bound of its stream."""
    return max(1, max_answer // 16)


def are_networks(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    """Refuse texts that are no networks."""
    if not value:
        return
    import ipaddress  # noqa: PLC0415 - few settings name networks

    for each in value:
        try:
            ipaddress.ip_network(each)
        except ValueError as exc:
            raise FieldValueError(attribute.name, f"must be networks, as in 10.0.0.0/8: {exc}") from None


@frozen
class Limits:
    """The limits of one runtime. Times are in seconds.

    Attributes:
        max_sessions: turns that may run at once. Idle sessions do not count.
        mailbox: messages that may wait in one session's mailbox.
        inbox: inputs that may wait for one session.
        turn: budget of every turn without a budget of its own; its `max_steps` is the step limit.
        tool_timeout: a tool's time limit, unless the tool has its own.
        tool_threads: sync tools that run at once.
        approval_timeout: time that a tool call waits for approval, if its kind needs approval; a year at most.
        event_log: events that a session without a store keeps for late subscribers.
        max_live: stored sessions that are kept in memory; beyond them the session that is idle longest is evicted.
        model_silence: time that a model's server may send nothing, before its answer and within it.
        model_stall: time that a model's server may send nothing of its answer; comments and pings do not count.
        model_wait: time that a model call waits for the rate limit of its key.
        max_answer: bytes of a streamed answer, decompressed. Its texts and the arguments of its calls may have a 16th
            of them, an answer in one piece a 64th; its files count apart.
        max_answer_calls: tool calls of one answer, at most 4,096. If a model asks for more, none of them is run, and
            it is told so.
        repeated_calls_note: times that a turn may make a tool call with the same arguments and the same result, with
            nothing new between, until the model is told so.
        repeated_calls: times after which such a turn ends with an error. Calls of tools with `polls` do not count.
        max_attachment: bytes of a file that is attached to a message, or that a model makes.
        max_unread: bytes of replies that may wait until the clients of this process have read them. Beyond it the
            client with most of them is disconnected.
        max_memory: MiB of memory that the process may use; None is no limit. It works on Linux only. Above it stored
            sessions without work are evicted soon, turns run one at a time, and no session is added to the live ones.
        peer_hops: messages of peers that may follow from one another without a prompt of a user between. The tool calls
            that would send more are refused; one more may answer a request.
        peer_rate: messages that the model of a session may send to its peers within a minute.
        idle_after: time that a stored session may be idle in memory before it is evicted.
        interrupt_grace: time that `interrupt` waits for the turn to end.
        drain: time for an orderly end: turns that run may end within it; those that are left are parked, or interrupted
            and stored if they cannot be.
        resumptions: times that a process may die during a turn until the turn ends as failed.
        background_calls: tool calls of one session that run in the background at once. The model is told of a call
            beyond them that it was not run.
        child_depth: levels of child sessions below a session that is no child itself.
        children: child sessions of one session that are at work at once.
        schedules: schedules that a tenant may have.
        triggers: triggers that a tenant may have.
        webhooks: webhooks that a tenant may have.
        webhook_allow: networks of private addresses to which webhooks may post too, as in "10.0.0.0/8", also without
            TLS. The addresses of hooks follow it too.
        hook_processes: commands of hooks that run at once; further ones wait.
        mcp_sessions: MCP sessions over HTTP that clients of a process may have. At the limit an idle one ends.
        subscriptions: sessions that the clients of a process may follow, together.
        watches: watches of the list of sessions that the clients of a process may have.
        uploads: files on their way to a prompt that a process keeps.
        upload_bytes: bytes of these files.
        tenant_share: the part of each of the five, and of the connections, that one tenant may have: at most 1.
        principal_share: the part that one principal may have. If every client is the same principal, both parts are 1.
    """

    max_sessions: int = attrs.field(default=10_000, validator=positive)
    mailbox: int = attrs.field(default=1_000, validator=positive)
    inbox: int = attrs.field(default=1_000, validator=positive)
    turn: Budget = attrs.field(factory=lambda: Budget(max_steps=100))
    tool_timeout: float = attrs.field(default=600.0, validator=positive)
    tool_threads: int = attrs.field(default=40, validator=positive)
    approval_timeout: float = attrs.field(default=300.0, validator=Between(0, YEAR, without_low=True))
    event_log: int = attrs.field(default=10_000, validator=positive)
    max_live: int = attrs.field(default=10_000, validator=positive)
    model_silence: float = attrs.field(default=300.0, validator=positive)
    model_stall: float = attrs.field(default=1800.0, validator=positive)
    model_wait: float = attrs.field(default=60.0, validator=positive)
    max_answer: int = attrs.field(default=64 * 1024 * 1024, validator=positive)
    max_answer_calls: int = attrs.field(default=128, validator=Between(0, MAX_BLOCKS, without_low=True))
    repeated_calls_note: int = attrs.field(default=5, validator=positive)
    repeated_calls: int = attrs.field(default=20, validator=positive)
    max_attachment: int = attrs.field(default=20 * 1024 * 1024, validator=positive)
    max_unread: int = attrs.field(default=256 * 1024 * 1024, validator=positive)
    max_memory: int | None = attrs.field(default=None, validator=positive)
    peer_hops: int = attrs.field(default=16, validator=positive)
    peer_rate: int = attrs.field(default=120, validator=positive)
    idle_after: float = attrs.field(default=60.0, validator=not_negative)
    interrupt_grace: float = attrs.field(default=5.0, validator=not_negative)
    drain: float = attrs.field(default=10.0, validator=not_negative)
    resumptions: int = attrs.field(default=5, validator=not_negative)
    background_calls: int = attrs.field(default=16, validator=not_negative)
    child_depth: int = attrs.field(default=5, validator=not_negative)
    children: int = attrs.field(default=1_000, validator=not_negative)
    schedules: int = attrs.field(default=10_000, validator=not_negative)
    triggers: int = attrs.field(default=10_000, validator=not_negative)
    webhooks: int = attrs.field(default=100, validator=not_negative)
    webhook_allow: tuple[str, ...] = attrs.field(default=(), validator=are_networks)
    hook_processes: int = attrs.field(default=16, validator=positive)
    mcp_sessions: int = attrs.field(default=5_000, validator=positive)
    subscriptions: int = attrs.field(default=50_000, validator=positive)
    watches: int = attrs.field(default=1_000, validator=positive)
    uploads: int = attrs.field(default=10_000, validator=positive)
    upload_bytes: int = attrs.field(default=384 * 1024 * 1024, validator=positive)
    tenant_share: float = attrs.field(default=0.8, validator=Between(0, 1, without_low=True))
    principal_share: float = attrs.field(default=0.6, validator=Between(0, 1, without_low=True))

    @cached_property
    def content(self) -> int:
        """Bytes that the texts and the arguments of an answer may have."""
        return content_of(self.max_answer)


@frozen
class Intensity:
    """The restart intensity of the storage actor: crashes that it may have before the runtime stops.

    The memory actor rests past it, and the runtime goes on without the memory meanwhile.

    Attributes:
        restarts: restarts within `seconds`; with one more the runtime stops.
        seconds: the time in which restarts are counted.
    """

    restarts: int = attrs.field(default=5, validator=not_negative)
    seconds: float = attrs.field(default=10.0, validator=positive)


@frozen
class StoreConfig:
    """The durable store.

    Attributes:
        path: the folder; it is created with its file on first use.
        synchronous: FULL survives a power cut. NORMAL may lose the last turns in one, but never damages the file.
        busy_timeout: seconds that a commit waits for another process's lock.
        readers: connections that serve reads.
        lease: seconds after which other processes may take over the sessions of this process if it hangs. The sessions
            of a process that has died are taken over at once.
        holder: name of this process in the errors that other processes get for its sessions; None makes a name of the
            program, the pid and the host.
        projections: whether the sessions are also written as plain files beside the store, for people and other
            programs. Nothing depends on these files.
    """

    path: Path = attrs.field(converter=Path, validator=no_url)
    synchronous: Synchronous = attrs.field(default="FULL", validator=OneOf(get_args(Synchronous)))
    busy_timeout: float = attrs.field(default=5.0, validator=not_negative)
    readers: int = attrs.field(default=2, validator=positive)
    lease: float = attrs.field(default=15.0, validator=positive)
    holder: str | None = None
    projections: bool = True


@frozen
class PostgresConfig:
    """The durable store in a PostgreSQL database: version 14 or newer, with UTF-8 as its encoding.

    Attributes:
        url: the address as libpq takes it: `postgresql://USER@HOST:PORT/DATABASE`, with options such as
            `?sslmode=verify-full`. Missing parts come from libpq's variables and files, such as `PGPASSWORD` or
            `~/.pgpass`. Its password is never shown.
        timeout: seconds that a call waits for the server: for an answer, for a lost connection to come back, and for a
            proof of the leases. A call behind others waits for them before that, for as long at most.
        lock_timeout: seconds that a commit waits for the lock of another process on a session.
        readers: connections that serve reads.
        lease: seconds after which other processes may take over the sessions of this process if it hangs. The sessions
            of a process that has died are free after a third of it, or once another one opens the store in its place.
        holder: name of this process in the errors that other processes get for its sessions; None makes a name of the
            program, the pid and the host.
        project: the folder into which the sessions of a store in a database are also written as plain files; None
            writes none. Each process that has one writes all sessions of the database, and only one process at a time
            writes into a folder.
    """

    url: str = attrs.field(validator=is_database_url)
    timeout: float = attrs.field(default=10.0, validator=positive)
    lock_timeout: float = attrs.field(default=1.0, validator=positive)
    readers: int = attrs.field(default=2, validator=positive)
    lease: float = attrs.field(default=12.0, validator=positive)
    holder: str | None = None
    project: Path | None = attrs.field(
        default=None, converter=attrs.converters.optional(Path), validator=attrs.validators.optional(no_url)
    )

    @property
    def shown(self) -> str:
        """The address without its password, for people."""
        return without_password(self.url)

    def __repr__(self) -> str:
        others = [f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(PostgresConfig)[1:]]
        return f"PostgresConfig(url={self.shown!r}, {', '.join(others)})"


@frozen
class NodeConfig:
    """A process that serves sessions together with others on one store.

    Attributes:
        name: its name, by which operators ask it to drain; None makes one of the host and the pid.
        address: the URL of its gateway for other nodes, `ws://HOST:PORT` or `unix:PATH`; None if it serves none.
        group: a name for the nodes that serve one port together: each answers for the health of all. None for a node
            that serves alone.
        worker: its number among the nodes of its group, which a process that takes its place has, too; None without a
            group.
    """

    name: str | None = attrs.field(default=None, validator=not_empty)
    address: str | None = attrs.field(default=None, validator=not_empty)
    group: str | None = attrs.field(default=None, validator=not_empty)
    worker: int | None = None


Dialect = Literal["anthropic", "gemini", "openai-chat", "openai-responses"]


MEMBERS: Final = (
    *("stream_options", "parallel_tool_calls", "tool_choice", "reasoning_effort", "max_completion_tokens"),
    *("max_tokens", "max_output_tokens", "top_p", "temperature", "response_format", "prompt_cache_key", "store"),
    *("include", "reasoning", "output_config", "thinking", "strict", "text", "topP", "maxOutputTokens"),
    *("thinkingConfig", "responseJsonSchema", "responseMimeType", "includeServerSideToolInvocations"),
)
"""Members of request bodies without which a request is still the same question."""
SWITCHES: Final = (
    *MEMBERS,
    *("cache_control", "reasoning_content", "images", "files", "audio"),
    *("ids", "user_after_tool", "system_role", "tool_role", "null_content", "reasoning_back"),
    "finish_reason",
)
"""The names of what a server may not take of its protocol."""


def _are_switches(_instance: object, attribute: "attrs.Attribute[Any]", names: tuple[Any, ...]) -> None:
    for name in names:
        if name not in SWITCHES:
            raise FieldValueError(attribute.name, f"has {name!r}, which is none of {', '.join(SWITCHES)}")


@frozen(kw_only=True)
class ModelServer:
    """A server of models, as a provider of its own, or in place of a vendor's server if it has that one's name.

    Attributes:
        name: name of the provider, with which sessions and turns name the server.
        base_url: address, as the variables of the vendors have it.
        key_env: the environment variable with its key; None is `<NAME>_API_KEY`, and that of a vendor under its name.
        dialect: its protocol; None is OpenAI's chat completions, and that of a vendor under its name.
        without: what it does not take of the protocol: members of request bodies, such as `stream_options`, or one of
            `images`, `files`, `audio`, `ids`, `user_after_tool`, `system_role`, `tool_role`, `null_content`,
            `reasoning_back` and `finish_reason`. Without them it is asked once in vain, and the refusal is remembered
            for an hour; `warren doctor models` finds out.
        think_tags: whether text between `<think>` and `</think>` at the head of an answer is reasoning, in OpenAI's
            chat completions of other servers than OpenAI's.
    """

    name: str = attrs.field(validator=[is_text, not_blank])
    base_url: str = attrs.field(repr=False, validator=[is_text, not_blank])  # a URL may contain a password
    key_env: str | None = attrs.field(default=None, validator=not_empty)
    dialect: Dialect | None = attrs.field(default=None, validator=optional(OneOf(get_args(Dialect))))
    without: tuple[str, ...] = attrs.field(default=(), converter=in_row, validator=_are_switches)
    think_tags: bool = attrs.field(default=True, validator=is_flag)

    @property
    def key_variable(self) -> str:
        """The variable with the key, unless `key_env` names another one."""
        return re.sub("[^A-Z0-9]", "_", self.name.upper()) + "_API_KEY"


TENANTS: Final = Each(lambda name: TENANT.fullmatch(str(name)), "has {}, which cannot be the name of a tenant")


def are_tenants(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values other than names of tenants."""
    for index, each in enumerate(value):
        if not TENANT.fullmatch(str(each)):
            raise FieldValueError(f"{attribute.name}[{index}]", "cannot be the name of a tenant")


@frozen
class AgentFolder:
    """A folder with agents in files: `NAME.md`, `NAME/AGENT.md` or `NAME/SKILL.md`.

    Attributes:
        path: the folder.
        tenants: the tenants that know its agents; empty for all.
    """

    path: Path
    tenants: tuple[str, ...] = attrs.field(default=(), converter=in_row, validator=are_tenants)


@frozen
class TraceConfig:
    """Traces of turns, which are sent to a receiver of OpenTelemetry's protocol over HTTP.

    Attributes:
        endpoint: the address of the receiver, such as http://127.0.0.1:4318; None takes it from OpenTelemetry's own
            variables, or else there.
        sample: the share of turns that are traced, 0 to 1. If the caller of a turn is in a trace, that decides.
        content: whether the traces have the texts of the conversations.
    """

    endpoint: str | None = attrs.field(default=None, validator=optional(web_address))
    sample: float = attrs.field(default=1.0, validator=Between(0, 1))
    content: bool = False


@frozen
class Config(ModelOptions):
    """All settings of a runtime; the options of model calls are those of sessions that set none.

    Raises FieldValueError, which names the field, if a compactor cannot work with the settings.

    Attributes:
        store: the durable store, in files or in a database; None keeps everything in memory (the `session-store`
            capability is off).
        model: the model of sessions that name none.
        provider: the provider of sessions that name none, and of turns that name only a model; None lets the model's
            name decide.
        model_servers: servers of models besides those of the vendors, each of which is a provider.
        system_prompt: the system prompt of sessions that have none of their own.
        budget: the limits of sessions that are created without a budget, over all their turns; None for no limits.
        durability: when turns are stored: `step` stores each step of a turn with tool calls, and the turn goes on if
            its process ends; `turn` stores it whole at its end. It has no effect without a store.
        compaction: the settings of compaction; None turns the `session-compaction` capability off.
        compactor: a compactor of your own, or a function that makes one from a session's settings and its model's
            window; None is `warren.compaction.DefaultCompactor`. It needs `compaction`.
        memory: the memory of messages that left the context; None turns the `memory-store` capability off.
        tools: the tools besides those of the host; None for no such tools and no MCP servers.
        switches: the kinds of tools that are offered, unless a session or a turn switches them.
        gates: the kinds of tools whose calls wait for approval; a session or a turn may only be stricter.
        retry: the backoff of failed model calls.
        limits: the limits.
        intensity: the restart intensity of the storage actor.
        models: facts about models by their exact names: windows, caps, prices and abilities that win over the catalog.
        any_script: whether sessions and turns may name any file as a script, `scripted:FILE`. If not, there are the
            scripts that `model` and `models` name, and no others: set it so if clients come over a network.
        record: the file into which the answers of the models are recorded, as a script that `scripted:FILE` plays; None
            records none. Further sessions get files of their own beside it.
        node: this process as one of several nodes on the store, which it needs; None if it serves its sessions alone.
        tenants: the limits of tenants, by name. A tenant that is not there has none.
        traces: the traces of turns; None makes none.
        agents: the agents that sessions can be made of, by name.
        hook_commands: commands and web addresses that are told of events in all sessions, and may decide about them.
        hooks_files: files with such hooks in the form of Claude Code's settings, which come after these.
        agent_folders: folders with more of them in files. They are read when the runtime opens.
        agent_tenants: the tenants that know an agent, by its name. One that is not there is for all tenants.
    """

    store: StoreConfig | PostgresConfig | None = None
    model: str = "echo"
    provider: str | None = None
    model_servers: tuple[ModelServer, ...] = attrs.field(default=(), converter=in_row)
    system_prompt: str | None = None
    budget: Budget | None = None
    durability: Durability = attrs.field(default="step", validator=OneOf(DURABILITIES))
    compaction: CompactionConfig | None = None
    compactor: "Compactor | NewCompactor | None" = None
    memory: MemoryConfig | None = None
    tools: ToolsConfig | None = None
    switches: Switches = attrs.field(factory=Switches)
    gates: Gates = attrs.field(factory=Gates)
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    limits: Limits = attrs.field(factory=Limits)
    intensity: Intensity = attrs.field(factory=Intensity)
    models: Models = NO_MODELS
    any_script: bool = True
    record: Path | None = None
    node: NodeConfig | None = None
    tenants: Mapping[str, TenantLimits] = attrs.field(factory=dict, validator=[is_object, TENANTS])
    traces: TraceConfig | None = None
    agents: "tuple[Agent[Any], ...]" = attrs.field(default=(), converter=in_row)
    hook_commands: tuple[HookEntry, ...] = attrs.field(default=(), converter=in_row)
    hooks_files: tuple[Path, ...] = attrs.field(default=(), converter=in_row)
    agent_folders: tuple[AgentFolder, ...] = attrs.field(default=(), converter=in_row)
    agent_tenants: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, validator=is_object)

    def __attrs_post_init__(self) -> None:
        """Refuse values of other types, too many names, and a compactor that cannot work, before a session has them."""
        super().__attrs_post_init__()
        check_types(self)
        check_sizes(self)
        if self.agents != ():
            from warren.agents.agent import check_together  # noqa: PLC0415 - few settings have agents

            check_together(self.agents)
        if self.compactor is None:
            return
        if self.compaction is None:
            raise FieldValueError("compactor", "needs compaction, which is off")
        from warren.compaction.policy import compactor_of  # noqa: PLC0415 - few runtimes have one of their own

        try:
            compactor_of(self.compactor, self.compaction, None)
        except Exception as exc:  # a host's own code may raise anything
            raise FieldValueError("compactor", f"cannot be used: {exc}") from exc

    def settled(self, asked: SessionOptions) -> SessionOptions:
        """Return the options of a new session; an option that was not asked for is as these settings have it now.

        The model is no option of a session: its record has it.
        """
        model_options = given(ModelOptions, asked.over(self))
        return attrs.evolve(
            asked,
            model=None,
            provider=asked.provider or self.provider,
            budget=asked.budget or self.budget,
            **model_options,
        )
