"""Makes the tools of a runtime by its settings: files, the shell, the web, the clock, skills.

The root is one folder, and commands can do all that Warren's user can: both are for the sessions of the default tenant.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.fields import FieldValueError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import frozen
from warren.models.tools import Tool
from warren.settings.tool_config import ToolsConfig

if TYPE_CHECKING:
    from warren.actors.turn.attaching import FetchFile

T = TypeVar("T")
FILE_SECONDS: Final = 10.0
"""Seconds for fetching one file of a prompt."""


@frozen
class Workspace:
    """The tools of a runtime.

    Attributes:
        tools: the tools, each in its category.
        notes: by a tool's name, the text that the model's instructions have if the tool is offered.
        fetch_file: gets the files that prompts have by URL; None if they stay where they are.
    """

    tools: tuple[Tool, ...] = ()
    notes: Mapping[str, str] = attrs.field(factory=dict)
    fetch_file: "FetchFile | None" = None


async def workspace_of(
    config: ToolsConfig, environ: Mapping[str, str] | None = None, *, memory: bool = False
) -> Workspace:
    """Make the tools that settings ask for; modules that none of them needs are not imported.

    Args:
        config: the settings.
        environ: the variables for commands of the shell; None is the environment of the process.
        memory: whether the runtime has a memory; without one, skills that need it are left out.

    Raises:
        InvalidParamsError: if a setting cannot be obeyed (its path is below `$.tools`), or an extra is not installed.
    """
    tools = [*_builtins(config), *_shell(config, os.environ if environ is None else environ)]
    fetch_file = _fetch_file(config)
    if config.skills is None:
        return Workspace(tuple(tools), fetch_file=fetch_file)
    if problem := missing("skills", "skills need"):
        raise InvalidParamsError.at("$.tools.skills", problem)
    from warren.actors.tools.skills import load_skills  # noqa: PLC0415 - it has an extra of its own

    skills = (await trio.to_thread.run_sync(load_skills, config.skills)).offered(memory=memory)
    if not skills.known:
        return Workspace(tuple(tools), fetch_file=fetch_file)
    # Their tool is in the category of the host's own functions, because loading a skill harms nothing.
    load = skills.tool()
    return Workspace((*tools, load), {load.spec.name: skills.note()}, fetch_file)


def _fetch_file(config: ToolsConfig) -> "FetchFile | None":
    if not config.fetch and not config.fetch_allow:
        return None
    from warren.actors.tools.fetch import FetchLimits, file_fetcher  # noqa: PLC0415 - few have it

    limits = FetchLimits(seconds=FILE_SECONDS)
    return _made(lambda: file_fetcher(allow=config.fetch_allow, limits=limits), "fetch_allow")


def _builtins(config: ToolsConfig) -> list[Tool]:
    """Return the tools of the category `builtins`."""
    found: list[Tool] = []
    if config.root is not None:
        if problem := missing("tools", "file tools need"):
            raise InvalidParamsError.at("$.tools.root", problem)
        from warren.actors.tools.files.tools import file_tools  # noqa: PLC0415 - it has an extra of its own

        root = config.root
        made = _made(lambda: file_tools(root, writable=config.writable), "root")
        found += [attrs.evolve(each, tenant=DEFAULT_TENANT) for each in made]
    if config.fetch:
        from warren.actors.tools.fetch import fetch_tool  # noqa: PLC0415 - few have it

        found.append(_made(lambda: fetch_tool(allow=config.fetch_allow), "fetch_allow"))
    if found:
        from warren.actors.tools.clock import clock_tools  # noqa: PLC0415 - as above

        found += clock_tools()
    return [attrs.evolve(each, category="builtins") for each in found]


def _shell(config: ToolsConfig, environ: Mapping[str, str]) -> list[Tool]:
    if config.root is None or not config.shell:
        return []
    from warren.actors.tools.shell.tool import ALLOWED, shell_tool  # noqa: PLC0415 - few have it

    allow = (*ALLOWED, *config.env)
    made = shell_tool(config.root, environ=environ, allow_env=allow, timeout=config.shell_timeout)
    return [attrs.evolve(made, category="shell", tenant=DEFAULT_TENANT)]


def _made(make: Callable[[], T], setting: str) -> T:
    """Call a maker for a setting. Raises InvalidParamsError with the path of the setting if its value is bad."""
    try:
        return make()
    except FieldValueError as exc:
        raise InvalidParamsError.at(f"$.tools.{setting}", exc.problem) from exc
