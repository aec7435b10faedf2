"""The statistics of a runtime, as plain values for operators and tests. They are of one moment."""

from warren.base.values import frozen


@frozen
class StorageStatistics:
    """The figures of the actor that writes the store.

    Attributes:
        queued: operations that wait for the next commit.
        last_commit_ms: milliseconds of the newest commit that succeeded; None before the first.
    """

    queued: int
    last_commit_ms: float | None


@frozen
class RuntimeStatistics:
    """The figures of a runtime.

    Attributes:
        live_sessions: sessions that have an actor in memory.
        running_turns: turns that were admitted and have not ended; compactions that were asked for count as turns.
        waiting_sessions: sessions with an input that begins a turn as soon as there is room.
        idle_sessions: live sessions without work that can be evicted; without a store none can.
        leaving_sessions: sessions that were told to leave memory, and have not left yet.
        evictions: sessions that were told to leave memory since the start, also those that declined.
        mailbox_messages: messages in the mailboxes of all sessions that are not received yet.
        largest_mailbox: most messages in one mailbox.
        event_logs: sessions whose events are numbered here: live sessions, and those that are only watched.
        event_bytes: about how many bytes the events in memory have.
        subscriptions: readers of events.
        storage: None without a store.
    """

    live_sessions: int
    running_turns: int
    waiting_sessions: int = 0
    idle_sessions: int = 0
    leaving_sessions: int = 0
    evictions: int = 0
    mailbox_messages: int = 0
    largest_mailbox: int = 0
    event_logs: int = 0
    event_bytes: int = 0
    subscriptions: int = 0
    storage: StorageStatistics | None = None


@frozen
class SessionStatistics:
    """The figures of one live session.

    Attributes:
        turn_runs: whether a turn was admitted and has not ended.
        mailbox_messages: messages in its mailbox that are not received yet.
        waiting_inputs: inputs that its actor knows of and no turn has taken. The store may have one more for a moment.
        last_seq: the number of its newest event.
        subscriptions: readers of its events.
    """

    turn_runs: bool
    mailbox_messages: int
    waiting_inputs: int
    last_seq: int
    subscriptions: int
