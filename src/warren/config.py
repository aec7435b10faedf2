"""Settings of a runtime; plain values, no I/O."""

from pathlib import Path
from typing import Literal

import attrs

from warren.budget import Budget
from warren.categories import Gates, Switches
from warren.compaction.config import CompactionConfig
from warren.compaction.policy import Compactor, NewCompactor, compactor_of
from warren.fields import FieldValueError, no_url, not_negative, positive
from warren.memory import MemoryConfig
from warren.tool_config import ToolsConfig


@attrs.frozen
class RetryPolicy:
    """How a failed model call is tried again: delays in seconds, growing by `factor`, spread by `jitter`.

    A provider's own Retry-After wins over the computed delay. If it is longer than `max_retry_after`, the call fails at
    once.

    Attributes:
        max_attempts: times that a model is called for one answer.
        initial_delay: the first wait.
        factor: how the wait grows from one attempt to the next.
        jitter: how far waits are spread, as a share of them.
        max_delay: the longest wait of our own.
        max_retry_after: the longest wait that a provider may ask for; a call that is to wait longer fails at once.
    """

    max_attempts: int = attrs.field(default=3, validator=positive)
    initial_delay: float = attrs.field(default=0.5, validator=not_negative)
    factor: float = attrs.field(default=2.0, validator=positive)
    jitter: float = attrs.field(default=0.1, validator=not_negative)
    max_delay: float = attrs.field(default=30.0, validator=not_negative)
    max_retry_after: float = attrs.field(default=60.0, validator=not_negative)


@attrs.frozen
class Limits:
    """Bounds of one runtime; times in seconds.

    Attributes:
        max_sessions: turns that run at once; idle sessions do not count.
        mailbox: messages that may wait in one session's mailbox.
        inbox: inputs that may wait for one session.
        turn: budget of every turn that names none of its own; its `max_steps` is the step limit.
        tool_timeout: a tool's time limit, unless the tool has its own.
        tool_threads: sync tools that run at once.
        approval_timeout: how long a tool call waits for somebody's word, where its kind has to.
        subscription: events a subscriber may fall behind before it gets a gap.
        event_log: events that a session without a store keeps for late subscribers.
        max_live: stored sessions that are kept in memory; past it the one that is idle longest goes to the store.
        model_silence: how long a model's server may say nothing, before its answer and within it.
        model_stall: how long it may go on without sending any of its answer: comments and pings do not count.
        max_answer: bytes that a model's server may send as a streamed answer, decompressed; an answer in one piece may
            have a 32nd of them.
        max_memory: MiB that the process may have in memory, None for no limit; it is known on Linux alone. Past it
            stored sessions that have nothing to do soon leave memory, turns run one at a time, and there are no
            new sessions beside those that are live.
        idle_after: how long a stored session may be idle in memory.
        interrupt_grace: how long `interrupt` waits for the turn to end.
        drain: how long shutdown waits for interrupted turns to end.
    """

    max_sessions: int = attrs.field(default=10_000, validator=positive)
    mailbox: int = attrs.field(default=1_000, validator=positive)
    inbox: int = attrs.field(default=1_000, validator=positive)
    turn: Budget = attrs.field(factory=lambda: Budget(max_steps=100))
    tool_timeout: float = attrs.field(default=600.0, validator=positive)
    tool_threads: int = attrs.field(default=40, validator=positive)
    approval_timeout: float = attrs.field(default=300.0, validator=positive)
    subscription: int = attrs.field(default=256, validator=positive)
    event_log: int = attrs.field(default=10_000, validator=positive)
    max_live: int = attrs.field(default=10_000, validator=positive)
    model_silence: float = attrs.field(default=300.0, validator=positive)
    model_stall: float = attrs.field(default=1800.0, validator=positive)
    max_answer: int = attrs.field(default=64 * 1024 * 1024, validator=positive)
    max_memory: int | None = attrs.field(default=None, validator=positive)
    idle_after: float = attrs.field(default=60.0, validator=not_negative)
    interrupt_grace: float = attrs.field(default=5.0, validator=not_negative)
    drain: float = attrs.field(default=10.0, validator=not_negative)


@attrs.frozen
class Intensity:
    """How often the storage actor may crash and be restarted.

    Attributes:
        restarts: restarts past which the runtime stops, if they fall into `seconds`.
        seconds: the time in which restarts are counted.
    """

    restarts: int = attrs.field(default=5, validator=not_negative)
    seconds: float = attrs.field(default=10.0, validator=positive)


@attrs.frozen
class StoreConfig:
    """The durable store.

    Attributes:
        path: its folder; created with its file on first use.
        synchronous: FULL survives a power cut; NORMAL may lose the last turns in one, never a consistent file.
        busy_timeout: seconds a commit waits for another process's lock.
        readers: connections that serve reads.
        lease: seconds after which other processes may take over the sessions of this one, should it hang. They take
            over those of a process that died at once.
        holder: what this process is called where another one is told who has a session.
        projections: whether the sessions are written out as plain files beside it, for people and other programs to
            read. Nothing depends on them.
    """

    path: Path = attrs.field(converter=Path, validator=no_url)
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    busy_timeout: float = attrs.field(default=5.0, validator=not_negative)
    readers: int = attrs.field(default=2, validator=positive)
    lease: float = attrs.field(default=15.0, validator=positive)
    holder: str | None = None
    projections: bool = True


@attrs.frozen
class Config:
    """Everything a runtime is told at its start.

    Attributes:
        store: the durable store; None keeps everything in memory (the `session-store` capability is off).
        model: the model of sessions that name none.
        provider: the provider of sessions that name none, and of turns that name a model alone; None lets the model's
            name decide.
        system_prompt: of sessions that name none.
        compaction: how contexts are compacted; None turns the `session-compaction` capability off.
        compactor: a strategy of one's own, or a function that makes one of a session's settings and its model's window;
            None is `warren.compaction.DefaultCompactor`. It needs `compaction`.
        memory: where what was compacted away is remembered; None turns the `memory-store` capability off.
        max_tokens: cap of one answer for sessions that name none.
        tools: which tools there are besides those that the host brings; None for none, nor any MCP servers.
        switches: which kinds of tools are offered, unless a session or a turn says otherwise.
        approvals: which kinds wait for somebody's word; a session or a turn may only be stricter.
        retry: how failed model calls are tried again.
        limits: bounds.
        intensity: restarts of the storage actor.
    """

    store: StoreConfig | None = None
    model: str = "echo"
    provider: str | None = None
    system_prompt: str | None = None
    compaction: CompactionConfig | None = None
    compactor: Compactor | NewCompactor | None = None
    memory: MemoryConfig | None = None
    max_tokens: int | None = None
    tools: ToolsConfig | None = None
    switches: Switches = attrs.field(factory=Switches)
    approvals: Gates = attrs.field(factory=Gates)
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    limits: Limits = attrs.field(factory=Limits)
    intensity: Intensity = attrs.field(factory=Intensity)

    def __attrs_post_init__(self) -> None:
        """Refuse a compactor that cannot work before a session counts on it."""
        if self.compactor is None:
            return
        if self.compaction is None:
            raise FieldValueError("compactor", "needs compaction, which is off")
        try:
            compactor_of(self.compactor, self.compaction, None)
        except Exception as exc:  # a host's own code may raise anything
            raise FieldValueError("compactor", f"cannot be used: {exc}") from exc
