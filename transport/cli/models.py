"""`warren models`: the families of models, whether they can be called, and the catalog."""

import os
from decimal import Decimal

from warren import codec
from warren.catalog import ModelEntry, entry_of, known
from warren.transport.cli.options import Options
from warren.transport.cli.streams import Streams
from warren.transport.cli.tables import show_table
from warren.transport.providers import KnownModel, default_model, known_models

COLUMNS = ("model", "provider", "usable", "window", "answer", "input", "output", "cache read", "write 5m", "write 1h")


def list_models(options: Options) -> None:
    """Run `warren models`: no network, no store; keys are never shown. Prices are US dollars per million tokens."""
    streams, servers = Streams(), options.model_servers
    default, families = default_model(os.environ, servers), known_models(os.environ, servers)
    catalog = {**known(), **{name: entry_of(name, options.models) for name in options.models}}
    if options.mode.json:
        found = {"default": default, "models": codec.to_data(families), "catalog": codec.to_data(catalog)}
        streams.write(codec.encode(found).decode() + "\n")
        return
    usable = {family.provider: _usable(family) for family in families}
    rows = [(family.pattern, family.provider, _usable(family), *[""] * 7) for family in families]
    show_table(streams, COLUMNS, rows + [_row(name, entry, usable) for name, entry in catalog.items()])
    streams.note(
        "prices are US dollars per million tokens, by the lists of the makers; no price is an unknown one", "dim"
    )
    streams.note(f"without --model a session gets {default}", "dim")


def _usable(family: KnownModel) -> str:
    return "yes" if family.usable else f"no: {family.reason}"


def _row(name: str, entry: ModelEntry, usable: dict[str, str]) -> tuple[str, ...]:
    provider = entry.provider or ""
    prices = (entry.input, entry.output, entry.cache_read, entry.cache_write_5m, entry.cache_write_1h)
    sizes = ("" if size is None else str(size) for size in (entry.window, entry.max_output))
    return name, provider, usable.get(provider, ""), *sizes, *map(_price, prices)


def _price(price: Decimal | None) -> str:
    return "" if price is None else f"{price:f}"
