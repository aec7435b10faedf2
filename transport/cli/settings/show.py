"""`warren config show`: the settings and their origins."""

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import attrs
import click
from click.core import ParameterSource

from warren.base.database_url import DatabaseUrl
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.options import DEFAULT_THRESHOLD, CompactionConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.command import command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.settings.file import ConfigFile
from warren.transport.cli.settings.names import OPTIONS
from warren.transport.cli.settings.options import CONFIG_FILE, DEFAULT_STORE, Mode
from warren.transport.cli.settings.single import every_setting
from warren.transport.cli.settings.table import FILE_NAMES, NUMBERS, SETTINGS, default_of
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import show_table
from warren.transport.providers import default_model
from warren.transport.providers.settings import VENDORS, Vendor, endpoint

Source = Literal["flag", "environment", "file", "default"]
SOURCES: Final[Mapping[ParameterSource | None, Source]] = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}
MASK: Final = "***"
UNSET: Final = "-"


FILE_ORDER: Final = tuple(SETTINGS)


@frozen
class Setting:
    """One setting with its value and its origin.

    Attributes:
        name: its name in the configuration file, or that of its option if a file cannot have it.
        value: plain data; None is not set.
        source: the kind of its origin.
        where: the option, the variable or the file that set it; None for a default.
    """

    name: str
    value: Any
    source: Source
    where: str | None = None

    @property
    def origin(self) -> str:
        """The origin, for a person."""
        return self.source if self.where is None else f"{self.source} {self.where}"


@click.group(cls=CommandGroup)
def config() -> None:
    """Look at the settings."""


@command(
    "warren config show",
    "warren config show --output json",
    "WARREN_MODEL=echo warren config show --max-steps 5",
    name="show",
    of=config,
)
@every_setting
@click.pass_context
def config_show(context: click.Context, /) -> None:
    """Show every setting, its value and its origin.

    The command line wins over the environment, the environment over the configuration file. Options that are given here
    are shown as another command would read them. API keys are not shown, only whether there is one.

    Piped, each setting is a line of fields between tabs: name, value, origin.
    """
    found, streams = [*settings(context, os.environ), *keys(os.environ)], Streams()
    if context.ensure_object(Mode).json:
        streams.write(codec.encode({"settings": codec.to_data(found)}).decode() + "\n")
        return
    show_table(
        streams, ("setting", "value", "from"), [(one.name, words(one.name, one.value), one.origin) for one in found]
    )


def settings(context: click.Context, environ: Mapping[str, str]) -> list[Setting]:
    """Return the settings among a command's options, in the order of the file, and then those that no file can have."""
    options = [param for param in context.command.params if isinstance(param, click.Option)]
    in_database = isinstance(context.params.get("store"), DatabaseUrl)
    defaults = default_values(environ, in_database=in_database)
    found = [_setting(context, option, defaults) for option in options]
    found += _of_the_runtime(context, {setting.name for setting in found}, in_database=in_database)
    order = {name: place for place, name in enumerate(FILE_ORDER)}
    return sorted(found, key=lambda setting: order.get(setting.name, len(order)))


def _of_the_runtime(context: click.Context, known: Container[str], *, in_database: bool) -> Iterator[Setting]:
    """Yield the settings that are no options, without those that an option has too."""
    file: ConfigFile | None = context.meta.get(CONFIG_FILE)
    values, variables, servers = ({}, {}, {}) if file is None else (file.values, file.variables, file.servers)
    where = os.fspath(context.params["config"] or "")
    for name, setting in SETTINGS.items():
        if name in known or not setting.for_all:
            continue
        if name in variables:
            yield Setting(name, _plain(values[name]), "environment", variables[name])
        elif name in values:
            yield Setting(name, _plain(values[name]), "file", where)
        else:
            yield Setting(name, _plain(default_of(name, in_database=in_database)), "default")
    for name, server in servers.items():
        yield Setting(f"mcp_servers.{name}", server.where, "file", where)
    for name, entry in {} if file is None else file.models.items():
        yield Setting(f"models.{name}", codec.to_data(entry), "file", where)
    for model_server in () if file is None else file.model_servers:
        name, url = model_server.name, _without_password(model_server.base_url)
        yield Setting(f"providers.{name}", url, "file", where)
    for name, limits in {} if file is None else file.tenants.items():
        yield Setting(f"tenants.{name}", codec.to_data(limits), "file", where)
    for at, hook in enumerate(() if file is None else file.hooks):
        yield Setting(f"hooks[{at}]", hook.name, "file", where)


def keys(environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of the model providers in the environment; keys and passwords are masked."""
    for vendor in VENDORS.values():
        found = endpoint(vendor, environ)
        yield _from_environment("api_key", vendor, vendor.key_variable, MASK if found.key else None, environ)
        yield _from_environment("base_url", vendor, vendor.url_variable, _without_password(found.url), environ)


def _setting(context: click.Context, option: click.Option, defaults: Mapping[str, Any]) -> Setting:
    key = str(option.name)
    source = SOURCES.get(context.get_parameter_source(key), "default")
    value, name = _plain(context.params[key]), FILE_NAMES.get(key, key)
    where = {
        "flag": _flag(option, value),
        "environment": str(option.envvar),
        "file": os.fspath(context.params.get("config") or ""),
        "default": None,
    }[source]
    if key == "no_compaction":  # the file has the opposite of this flag
        value = not value
    return Setting(name, defaults.get(key) if value is None else value, source, where)


def default_values(environ: Mapping[str, str], *, in_database: bool | None = None) -> dict[str, Any]:
    """Return the defaults of options that click has no default for, by their names in the code."""
    compaction = attrs.asdict(CompactionConfig(DEFAULT_THRESHOLD))
    shared = {option: default_of(name, in_database=in_database) for name, option in OPTIONS.items()}
    served = {name: attrs.fields_dict(GatewayConfig)[name].default for name in ("host", "port", "max_connections")}
    single = {
        "store": os.fspath(DEFAULT_STORE),
        "model": default_model(environ),
        "durability": default_of("durability"),
    }
    return compaction | shared | served | single


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return os.fspath(value)
    if isinstance(value, DatabaseUrl):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _flag(option: click.Option, value: Any) -> str:
    """Return the long name of the flag that was given."""
    names = option.secondary_opts if value is False and option.secondary_opts else option.opts
    return max(names, key=len)


def _from_environment(name: str, vendor: Vendor, variable: str, value: Any, environ: Mapping[str, str]) -> Setting:
    given = bool(environ.get(variable, "").strip())
    return Setting(f"{vendor.name}.{name}", value, "environment" if given else "default", variable if given else None)


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{MASK if user else ''}{at}{host}", query=MASK if parts.query else "").geturl()


def words(name: str, value: Any) -> str:
    """Return a value in the spelling of the file, but a text without its quotes."""
    match value:
        case None:
            return UNSET
        case str():
            return value
        case float() if name.rpartition(".")[2] not in NUMBERS:
            return f"{value:.10g}s"
        case _:
            return codec.encode(value).decode()
