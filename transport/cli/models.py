"""`warren models`: the families of models, whether they can be called, and the catalog."""

import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial

import click

from warren.conversation import codec
from warren.conversation.options import TurnOptions
from warren.models.catalog import ModelEntry, entry_of, known
from warren.transport.cli.command import command
from warren.transport.cli.runtime import execute
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, config_option, output_options
from warren.transport.cli.terminal.results import show_result
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import show_table
from warren.transport.providers import KnownModel, default_model, known_models
from warren.transport.providers.registry import provider_of

LIVE_COLUMNS = ("model", "provider", "in the catalog", "window", "input", "output")
NOBODY = "no provider has a key or an address of its own; see `warren models`"
COLUMNS = ("model", "provider", "usable", "window", "answer", "input", "output", "cache read", "write 5m", "write 1h")


@command("warren models", "OPENAI_BASE_URL=http://127.0.0.1:8000/v1 warren models --output json")
@click.option("--live", is_flag=True, help="Ask each provider that has a key or an address of its own for its models.")
@of_field(TurnOptions, "provider", "-p", "--provider", note="With --live: the only one to ask.")
@config_option
@output_options
def models(*, live: bool, options: Options) -> int:
    """List the models that can be named.

    For each it says whether it can be called now, or the setting that is missing, and what is known of it: the tokens
    of its window and of an answer, and its prices in US dollars per million tokens.

    Piped, each is a line of fields between tabs: model, provider, usable, window, answer, and the prices of input,
    output, cache read, write for 5m, write for 1h. With --live: model, provider, in the catalog, window, input, output.
    """
    if live:
        return list_live(options)
    list_models(options)
    return 0


def list_models(options: Options) -> None:
    """Run `warren models`: no network, no store; keys are never shown. Prices are US dollars per million tokens."""
    servers = options.config.model_servers
    default, families = default_model(os.environ, servers), known_models(os.environ, servers)
    catalog = {**known(), **{name: entry_of(name, options.config.models) for name in options.config.models}}
    data = {"default": default, "models": codec.to_data(families), "catalog": codec.to_data(catalog)}
    show_result(options, data, _show, default, families, catalog)


def _show(streams: Streams, default: str, families: Sequence[KnownModel], catalog: Mapping[str, ModelEntry]) -> None:
    usable = {family.provider: _usable(family) for family in families}
    rows = [(family.pattern, family.provider, _usable(family), *[""] * 7) for family in families]
    show_table(streams, COLUMNS, rows + [_row(name, entry, usable) for name, entry in catalog.items()])
    streams.note(
        "prices are US dollars per million tokens, by the lists of the makers; no price is an unknown one", "dim"
    )
    streams.note(f"without --model a session gets {default}", "dim")


def list_live(options: Options) -> int:
    """Run `warren models --live`; return the exit code: 1 if a provider does not answer, or none is configured."""
    from warren.transport.providers import checking  # noqa: PLC0415 - httpx is imported on first use

    ask = partial(checking.list_live, os.environ, options.config.model_servers, options.turn.provider)
    found = execute(ask, options)

    def show(streams: Streams) -> None:
        rows = [(name, each.provider, *_facts(name, options)) for each in found for name in each.models]
        show_table(streams, LIVE_COLUMNS, rows)
        for problem in [each.error for each in found if each.error is not None] if found else [NOBODY]:
            streams.note(problem, "red")

    show_result(options, {"providers": codec.to_data(found)}, show)
    return 1 if not found or any(each.error is not None for each in found) else 0


def check_live(options: Options) -> int:
    """Run `warren doctor models`; return the exit code: 1 if a call does not succeed, or no provider is configured.

    Raises InvalidParamsError for a model without a provider, of which nobody could say whom to ask.
    """
    from warren.transport.providers import checking  # noqa: PLC0415 - httpx is imported on first use

    models: dict[str, str] = {}
    if options.turn.model is not None:
        name = options.turn.provider or provider_of(options.turn.model, os.environ, options.config.model_servers)
        models[name] = options.turn.model.removeprefix(f"{name}:")
    ask = partial(checking.check_live, os.environ, options.config.model_servers, options.turn.provider, models)
    found = execute(ask, options)

    def show(streams: Streams) -> None:
        rows = [(each.provider, each.model or "", each.problem or "ok", each.message or "") for each in found]
        show_table(streams, ("provider", "model", "problem", "message"), rows)
        streams.write("".join(f"\n{each.settings}\n" for each in found if each.settings is not None))
        if not found:
            streams.note(NOBODY, "red")

    show_result(options, {"providers": codec.to_data(found)}, show)
    return 1 if not found or any(each.problem is not None for each in found) else 0


def _facts(name: str, options: Options) -> tuple[str, ...]:
    entry = entry_of(name, options.config.models)
    known_by = "yes" if entry.priced else "no"
    return known_by, "" if entry.window is None else str(entry.window), _price(entry.input), _price(entry.output)


def _usable(family: KnownModel) -> str:
    return "yes" if family.usable else f"no: {family.reason}"


def _row(name: str, entry: ModelEntry, usable: dict[str, str]) -> tuple[str, ...]:
    provider = entry.provider or ""
    prices = (entry.input, entry.output, entry.cache_read, entry.cache_write_5m, entry.cache_write_1h)
    sizes = ("" if size is None else str(size) for size in (entry.window, entry.max_output))
    return name, provider, usable.get(provider, ""), *sizes, *map(_price, prices)


def _price(price: Decimal | None) -> str:
    return "" if price is None else f"{price:f}"
