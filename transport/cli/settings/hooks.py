"""The tables `[[hooks]]` of a configuration file."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from warren.base.durations import seconds_of
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.settings.hook_config import HookEntry, HookEvent
from warren.transport.cli.settings.table import duration


@frozen(kw_only=True)
class HookTable:
    """A table `[[hooks]]`: as `warren.settings.hook_config.HookEntry`."""

    event: HookEvent
    matcher: str = "*"
    condition: str | None = None
    command: str | None = None
    args: tuple[str, ...] | None = None
    url: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    env: tuple[str, ...] = ()
    timeout: str | None = attrs.field(default=None, validator=duration)
    on_failure: Literal["allow", "deny"] = "allow"
    background: bool = False
    tenants: tuple[str, ...] | None = None


def entries_in(tables: tuple[HookTable, ...]) -> tuple[HookEntry, ...]:
    """Return the hooks of tables. Raises FieldValueError with the place below `hooks`."""
    return tuple(_entry(at, table) for at, table in enumerate(tables))


def _entry(at: int, table: HookTable) -> HookEntry:
    settings: dict[str, Any] = attrs.asdict(table, recurse=False)
    if table.timeout is not None:
        settings["timeout"] = seconds_of(table.timeout)
    try:
        return HookEntry(**settings)
    except FieldValueError as exc:
        raise FieldValueError(f"hooks[{at}].{exc.field}", exc.problem) from None
