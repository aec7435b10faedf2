"""Which models a client of Meerkat is shown: the runtime's own, and the first choice of each provider it can call."""

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

import attrs

from warren.transport.providers.registry import ECHO, default_model, known_models
from warren.transport.providers.settings import ANTHROPIC, OPENAI
from warren.transport.rpc.settings import Settings
from warren.windows import window_of

FIRST_CHOICE: Final = {
    ECHO: ECHO,
    ANTHROPIC.name: ANTHROPIC.default_model,
    OPENAI.name: OPENAI.default_model,
}


@attrs.frozen
class Model:
    """One model; `context_window` is null where nobody knows."""

    id: str
    display_name: str
    tier: str
    context_window: int | None


@attrs.frozen
class ProviderModels:
    """The models of one provider."""

    provider: str
    default_model_id: str
    models: tuple[Model, ...]


@attrs.frozen
class Catalog:
    """Of `models/catalog`."""

    contract_version: str
    providers: tuple[ProviderModels, ...]


def providers(settings: Settings, environ: Mapping[str, str] | None = None) -> tuple[ProviderModels, ...]:
    """Return what can be called as far as the environment tells, the provider of the runtime's own model first.

    Trap: it is no list of all that there is. Every name that a provider knows can be asked for.
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
    """Return the provider of a model: by how its name looks, or else by what is before its colon."""
    return next(_claims(model, os.environ if environ is None else environ), model.partition(":")[0])


def _claims(model: str, environ: Mapping[str, str]) -> Iterator[str]:
    for known in known_models(environ):
        patterns = known.pattern.replace("FILE", "*").split(", ")
        if any(fnmatchcase(model, pattern) for pattern in patterns):
            yield known.provider
