"""Writes `docs/settings.md`, made from the options and the tables, to stdout. `make docs` runs it."""

import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from warren.base.values import frozen
from warren.transport.cli.settings.names import variable_of
from warren.transport.cli.settings.show import FILE_ORDER, config_show, default_values, words
from warren.transport.cli.settings.table import FILE_NAMES, SETTINGS, default_of

INTRODUCTION: Final = """\
# Settings

<!-- Made by `make docs` from the commands' options and the classes of settings; a test compares the two. -->

Every setting can be set in a configuration file and by a variable; those that are changed for a single command have a
flag, too. A flag wins over the variable, the variable over the file: `.rkat/config.toml`, or the file of `--config`.
`warren config show` shows each setting, its value and its origin; [the command line](cli.md#settings) has an example
of a file.

In the file a name with a dot is in a table: `limits.max_live` is `max_live` below `[limits]`. Durations are texts
there, as `"90"` (seconds), `"1.5s"` or `"1h30m"`. In a variable blanks separate the entries of a list. A name that is
not known is refused, in the file and in variables that begin like those of the tables.

In a program the same settings are the fields of `warren.Config` and of what is in it.
"""
HEAD: Final = ("in the file", "variable", "flag", "default", "meaning")
SERVERS: Final = """\
The tables `[mcp_servers.NAME]` have no variables: `--mcp-config` names a file with servers in the form that other
programs use. [MCP servers](mcp-client.md) explains both. Nor have the tables `[models.NAME]` and `[providers.NAME]`, of
which [model servers](models.md) has the settings, `[tenants.NAME]`, the [limits of a
tenant](operations.md#limits-of-a-tenant), `[[hooks]]`, [commands that watch over sessions](hooks-from-settings.md), and
`[agents.NAME]` and `agent_folders`, the [agents](agents.md#agents-of-the-settings).
"""


@frozen
class SettingRow:
    """One line of the table."""

    name: str
    variable: str
    flag: str
    default: str
    about: str

    @property
    def line(self) -> str:
        """The line in Markdown."""
        code = [f"`{each}`" if each else "" for each in (self.name, self.variable, self.flag)]
        return "| " + " | ".join([*code, self.default, self.about.replace("|", "\\\\|")]) + " |"


def settings_page() -> str:
    """Return the page."""
    lines = [row.line for row in rows()]
    head = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"
    return f"{INTRODUCTION}\n{head}\n" + "\n".join(lines) + f"\n\n{SERVERS}"


def rows() -> Iterator[SettingRow]:
    """Yield a row for each setting: in the order of the file, then the settings that no file can have."""
    options = [param for param in config_show.params if isinstance(param, click.Option)]
    found = {
        FILE_NAMES.get(str(option.name), ""): _of_option(option) for option in options if option.name in FILE_NAMES
    }
    for name in FILE_ORDER:
        yield found.get(name) or _of_table(name)
    yield from (_of_option(option) for option in options if option.name not in FILE_NAMES)


def _of_table(name: str) -> SettingRow:
    text, default = SETTINGS[name].about, default_of(name)
    shown = words(name, None if default in ((), "") else default)
    of_database = default_of(name, in_database=True)
    if name.startswith("storage.") and of_database not in (None, default):
        shown = f"{shown}, in a database {words(name, of_database)}"
    return SettingRow(name, variable_of(name), "", shown, text)


def _of_option(option: click.Option) -> SettingRow:
    key = str(option.name)
    name = FILE_NAMES.get(key, "")
    variable = option.envvar if isinstance(option.envvar, str) else ""
    flag = "/".join([max(option.opts, key=len), *option.secondary_opts])
    return SettingRow(name, variable, flag, words(name, _default(option)), option.help or "")


def _default(option: click.Option) -> Any:
    value = default_values({}).get(str(option.name), option.to_info_dict()["default"])
    if option.name == "no_compaction":  # the file has the opposite of this flag
        return True
    return None if value in ((), []) else value


if __name__ == "__main__":
    sys.stdout.write(settings_page())
