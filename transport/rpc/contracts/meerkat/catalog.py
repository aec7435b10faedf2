"""The catalogue of models for clients of Meerkat: the runtime's own, and the default one of each usable provider."""

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from warren.base.values import frozen
from warren.models.catalog import window_of
from warren.transport.providers.registry import ECHO, default_model, known_models
from warren.transport.providers.settings import VENDORS
from warren.transport.rpc.settings import Settings

FIRST_CHOICE: Final = {ECHO: ECHO} | {vendor.name: vendor.default_model for vendor in VENDORS.values()}


@frozen
class Model:
    """One model; `context_window` is null if it is unknown."""

    id: str
    display_name: str
    tier: str
    context_window: int | None


@frozen
class ProviderModels:
    """The models of one provider."""

    provider: str
    default_model_id: str
    models: tuple[Model, ...]


@frozen
class Catalog:
    """The result of `models/catalog`."""

    contract_version: str
    providers: tuple[ProviderModels, ...]


def providers(settings: Settings, environ: Mapping[str, str] | None = None) -> tuple[ProviderModels, ...]:
    """Return the providers that the environment has keys for, the one of the runtime's own model first.

    Trap: the list is not complete. A session may ask for every model that a provider knows.
    """
    found = os.environ if environ is None else environ
    own = settings.model or default_model(found)
    own_provider = settings.provider or provider_of(own, found)
    usable = dict.fromkeys(known.provider for known in known_models(found) if known.usable)
    others = {name: FIRST_CHOICE[name] for name in usable if name in FIRST_CHOICE and name != own_provider}
    return tuple(_provider(name, model) for name, model in {own_provider: own, **others}.items())


def _provider(name: str, model: str) -> ProviderModels:
    return ProviderModels(name, model, (Model(model, model, "recommended", window_of(model)),))


def provider_of(model: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the provider of a model: the first one whose pattern fits the name, or else the text before the colon."""
    return next(_claims(model, os.environ if environ is None else environ), model.partition(":")[0])


def _claims(model: str, environ: Mapping[str, str]) -> Iterator[str]:
    for known in known_models(environ):
        patterns = known.pattern.replace("FILE", "*").split(", ")
        if any(fnmatchcase(model, pattern) for pattern in patterns):
            yield known.provider
