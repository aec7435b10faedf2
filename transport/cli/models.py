"""`warren models`: the families of models, and whether they can be called."""

import os

from warren import codec
from warren.transport.cli.options import Options
from warren.transport.cli.streams import Streams
from warren.transport.cli.tables import show_table
from warren.transport.providers import KnownModel, default_model, known_models


def list_models(options: Options) -> None:
    """Run `warren models`: no network, no store; keys are never shown."""
    streams, default, known = Streams(), default_model(os.environ), known_models(os.environ)
    if options.mode.json:
        streams.write(codec.encode({"default": default, "models": codec.to_data(known)}).decode() + "\n")
        return
    show_table(streams, ("model", "provider", "usable"), [_row(model) for model in known])
    streams.note(f"without --model a session gets {default}", "dim")


def _row(model: KnownModel) -> tuple[str, str, str]:
    return model.pattern, model.provider, "yes" if model.usable else f"no: {model.reason}"
