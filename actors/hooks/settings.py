"""Reads the hooks of a runtime's settings: its own entries, and those of files in the form of Claude Code's."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.conversation import codec
from warren.settings.config import Config
from warren.settings.hook_config import HOOK_EVENTS, HookEntry

logger: Final = logging.getLogger("warren.hooks")
LARGEST_FILE: Final = 1024 * 1024
_FIELDS: Final = {
    "args": "args",
    "async": "background",
    "asyncRewake": "background",
    "headers": "headers",
    "allowedEnvVars": "env",
    "if": "condition",
    "timeout": "timeout",
}
"""Our names for the fields of a handler that have the same meaning in both."""
_OTHERS: Final = frozenset({"type", "command", "url", "shell", "statusMessage", "once", "description"})


def entries_of(config: Config) -> tuple[HookEntry, ...]:
    """Return the hooks of the settings, those of files last.

    Later changes of the files have no effect. A hook of a kind that Warren does not have is left out with a warning.

    Raises:
        InvalidParamsError: if a file cannot be read, if it is in the folder that sessions can write, or if a hook in it
            is bad.
    """
    found, root = list(config.hook_commands), None if config.tools is None else config.tools.root
    for at, path in enumerate(config.hooks_files):
        try:
            if root is not None:
                _check_place(path, root)
            found += HooksFile.at(path).entries(_data_of(path))
        except FieldValueError as exc:
            raise InvalidParamsError.at(f"$.hooks_files[{at}]", f"{path}: {exc}") from None
    return tuple(found)


def _check_place(path: Path, root: Path) -> None:
    """Refuse a file that sessions could change: what it names is run outside of all their bounds."""
    if path.absolute().is_relative_to(root.absolute()) or path.resolve().is_relative_to(root.resolve()):
        raise FieldValueError("the file", "is in the folder that sessions can write, tools.root")


def _data_of(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as exc:
        raise FieldValueError("the file", f"cannot be read: {exc.strerror}") from None
    if len(text) > LARGEST_FILE:
        raise FieldValueError("the file", f"has more than {LARGEST_FILE} bytes")
    try:
        data = codec.parse_file(text)
    except ValueError as exc:
        raise FieldValueError("the file", f"is no JSON: {exc}") from None
    return _mapping(data, "the file")


@frozen
class HooksFile:
    """Reads the hooks of one file.

    Attributes:
        path: the file.
        project: the folder that its commands know as CLAUDE_PROJECT_DIR.
    """

    path: Path
    project: Path

    @classmethod
    def at(cls, path: Path) -> "HooksFile":
        """Return the reader of a file: its project is its folder, or that above a folder `.claude`."""
        folder = path.absolute().parent
        return cls(path, folder.parent if folder.name == ".claude" else folder)

    def entries(self, data: Mapping[str, Any]) -> Iterator[HookEntry]:
        """Yield the hooks of its data. Raises FieldValueError for a bad one."""
        if data.get("disableAllHooks") is True:
            logger.warning("%s: disableAllHooks is true, so none of its hooks is used", self.path)
            return
        for event, groups in _mapping(data.get("hooks", {}), "hooks").items():
            if event not in HOOK_EVENTS:
                logger.warning("%s: hooks.%s is left out: Warren has no such event", self.path, event)
                continue
            for number, each in enumerate(_listed(groups, f"hooks.{event}")):
                place = f"hooks.{event}[{number}]"
                group = _mapping(each, place)
                of_group = {"event": event, "matcher": group.get("matcher", "*")}
                for at, handler in enumerate(_listed(group.get("hooks", []), f"{place}.hooks")):
                    inner = f"{place}.hooks[{at}]"
                    if (entry := self._entry(inner, of_group, _mapping(handler, inner))) is not None:
                        yield entry

    def _entry(self, place: str, of_group: Mapping[str, Any], handler: Mapping[str, Any]) -> HookEntry | None:
        """Return a hook; None for one of a kind that Warren does not have, which is told."""
        kind, shell = handler.get("type", "command"), handler.get("shell", "bash")
        if kind not in ("command", "http") or shell != "bash":
            what = f"no shell {shell!r}" if kind in ("command", "http") else f"no hooks of type {kind!r}"
            logger.warning("%s: %s is left out: Warren has %s", self.path, place, what)
            return None
        for name in handler.keys() - _FIELDS.keys() - _OTHERS:
            logger.warning("%s: %s.%s has no meaning here", self.path, place, name)
        target = "url" if kind == "http" else "command"
        given: dict[str, Any] = {target: handler.get(target)}
        given |= {ours: handler[theirs] for theirs, ours in _FIELDS.items() if handler.get(theirs) is not None}
        if "args" in given:
            given |= {part: self._filled(given[part]) for part in ("command", "args")}
        try:
            return attrs.evolve(codec.from_data(HookEntry, {**of_group, **given}), project=self.project)
        except InvalidParamsError as exc:
            name, problem = (exc.path or "$")[2:], exc.message.rpartition("$")[2].partition(" ")[2] or exc.message
            raise FieldValueError(f"{place}.{name}", problem) from None

    def _filled(self, value: Any) -> Any:
        """Fill the project's folder in, as no shell does it."""
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        return value.replace("${CLAUDE_PROJECT_DIR}", str(self.project)) if isinstance(value, str) else value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FieldValueError(where, "must be an object")
    return value


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FieldValueError(where, "must be a list")
    return value
