"""The tables `[limits]` and `[retry]` of the configuration file: settings of the runtime itself, no options."""

from collections.abc import Iterator
from typing import Any, Final

import attrs

from warren.budget import Budget
from warren.config import Limits, RetryPolicy
from warren.fields import FieldValueError, fits, not_negative, positive
from warren.transport.cli.values import seconds_of

TURN: Final = {
    "max_total_tokens": "max_tokens",
    "max_duration": "max_seconds",
    "max_tool_calls": "max_tool_calls",
    "max_steps": "max_steps",
}
"""The fields of a budget by the names that the file has for them everywhere."""


def duration(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse what is no time span above 0; None passes."""
    if value is not None and not seconds_of(value):
        raise FieldValueError(attribute.name, 'must be a duration above 0, such as "30", "1.5s" or "1h30m"')


def delay(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    """Refuse what is no time span; None passes."""
    if value is not None and seconds_of(value) is None:
        raise FieldValueError(attribute.name, 'must be a duration, such as "0", "1.5s" or "1h30m"')


def _count() -> Any:
    return attrs.field(default=None, validator=[positive, fits])


def _duration() -> Any:
    return attrs.field(default=None, validator=duration)


def _delay() -> Any:
    return attrs.field(default=None, validator=delay)


@attrs.frozen(kw_only=True)
class TurnTable:
    """The table `[limits.turn]`: the budget of every turn that names none of its own."""

    max_total_tokens: int | None = _count()
    max_duration: str | None = _duration()
    max_tool_calls: int | None = _count()
    max_steps: int | None = _count()

    def budget(self) -> Budget:
        """Return the budget; what is not set is as it is without a file."""
        return Limits().turn.overridden(Budget(**{TURN[name]: value for name, value in _given(self)}))


@attrs.frozen(kw_only=True)
class LimitsTable:
    """The table `[limits]`: the bounds of `warren.config.Limits` under their names, times as durations."""

    max_sessions: int | None = _count()
    mailbox: int | None = _count()
    inbox: int | None = _count()
    turn: TurnTable = attrs.field(factory=TurnTable)
    tool_timeout: str | None = _duration()
    tool_threads: int | None = _count()
    approval_timeout: str | None = _duration()
    subscription: int | None = _count()
    event_log: int | None = _count()
    max_live: int | None = _count()
    max_memory: int | None = _count()
    idle_after: str | None = _delay()
    interrupt_grace: str | None = _delay()
    drain: str | None = _delay()

    def limits(self) -> Limits:
        """Return the bounds; what is not set is as it is without a file."""
        return Limits(**dict(_given(self)) | {"turn": self.turn.budget()})


@attrs.frozen(kw_only=True)
class RetryTable:
    """The table `[retry]`: the policy of `warren.config.RetryPolicy` under its names, times as durations."""

    max_attempts: int | None = _count()
    initial_delay: str | None = _delay()
    factor: float | None = attrs.field(default=None, validator=[positive, fits])
    jitter: float | None = attrs.field(default=None, validator=[not_negative, fits])
    max_delay: str | None = _delay()
    max_retry_after: str | None = _delay()

    def policy(self) -> RetryPolicy:
        """Return the policy; what is not set is as it is without a file."""
        return RetryPolicy(**dict(_given(self)))


def flattened(limits: Limits, retry: RetryPolicy) -> dict[str, Any]:
    """Return every setting of the tables as it holds, by its name in the file; times in seconds."""
    turn = {f"limits.turn.{name}": getattr(limits.turn, field) for name, field in TURN.items()}
    rest = {f"limits.{name}": value for name, value in attrs.asdict(limits, recurse=False).items() if name != "turn"}
    return rest | turn | {f"retry.{name}": value for name, value in attrs.asdict(retry).items()}


def _given(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a table sets, times in seconds; tables in it are passed over."""
    for field in attrs.fields(type(table)):
        value = getattr(table, field.name)
        if value is not None and not attrs.has(type(value)):
            yield field.name, seconds_of(value) if isinstance(value, str) else value
