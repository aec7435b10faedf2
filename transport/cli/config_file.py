"""The configuration file: what a folder sets for the commands that run in it."""

import tomllib
from pathlib import Path
from typing import Any

import attrs

from warren import codec
from warren.compaction_config import CompactionConfig
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError, fits, positive
from warren.transport.cli.options import COMPACTION_FIELDS, seconds_of


def _path(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and "\0" in value:
        raise FieldValueError(attribute.name, "must not hold NUL")


def _duration(_instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not 0 < (seconds_of(value) or 0) < float("inf"):
        raise FieldValueError(attribute.name, 'must be a duration above 0, such as "30", "1.5s" or "1h30m"')


@attrs.frozen(kw_only=True)
class CompactionTable(CompactionConfig):
    """The table `[compaction]`: the settings of `CompactionConfig` under their names.

    Attributes:
        enabled: false turns the capability off.
    """

    enabled: bool = True


@attrs.frozen(kw_only=True)
class FileSettings:
    """The settings that a file may have, named as the options are; `store` is relative to where the command runs."""

    store: str | None = attrs.field(default=None, validator=_path)
    ephemeral: bool | None = None
    model: str | None = None
    provider: str | None = None
    system: str | None = None
    stream: bool | None = None
    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_total_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_duration: str | None = attrs.field(default=None, validator=_duration)
    max_tool_calls: int | None = attrs.field(default=None, validator=[positive, fits])
    max_steps: int | None = attrs.field(default=None, validator=[positive, fits])
    memory: bool | None = None
    embedder: str | None = None
    compaction: CompactionTable = attrs.field(factory=CompactionTable)

    def defaults(self) -> dict[str, Any]:
        """Return what is set, by the options' names in the code."""
        plain = attrs.asdict(self, recurse=False, filter=attrs.filters.exclude("compaction"))
        table = {name: getattr(self.compaction, name) for name in COMPACTION_FIELDS}
        found = {name: value for name, value in {**plain, **table}.items() if value is not None}
        return found if self.compaction.enabled else {**found, "no_compaction": True}


def read_defaults(path: Path) -> dict[str, Any]:
    """Return the options' values that a file sets, by their names in the code.

    Raises InvalidParamsError: its path is `$.config` for a file that cannot be read or is no TOML, else that of the
    bad field below it, as in `$.config.compaction.window`.
    """
    data = _parse(path)
    try:
        return codec.from_data(FileSettings, data, root="$.config").defaults()
    except InvalidParamsError as exc:
        raise InvalidParamsError(f"{exc.message} ({path})", path=exc.path) from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError(f"$.config: {path}: {problem}", path="$.config") from None
