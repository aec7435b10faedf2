"""Which provider answers for a model."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from warren.errors import InvalidParamsError
from warren.model import ModelChoice, Provider
from warren.transport.providers.echo import EchoProvider
from warren.transport.providers.scripted import ScriptedProvider, load_script
from warren.transport.providers.settings import ANTHROPIC, OPENAI, Bounds, Endpoint, Vendor, endpoint

if TYPE_CHECKING:
    import httpx

SCRIPTED: Final = "scripted"
ECHO: Final = "echo"
BUILT_IN: Final = (ANTHROPIC.name, OPENAI.name, ECHO, SCRIPTED)
_NAMES: Final = (
    (re.compile(r"claude-"), ANTHROPIC.name),
    (re.compile(r"(gpt-|chatgpt-|o\d+(-|$))"), OPENAI.name),
    (re.compile(r"echo$"), ECHO),
    (re.compile(r"scripted:"), SCRIPTED),
)


@attrs.frozen
class KnownModel:
    """A kind of model that can be named.

    Attributes:
        pattern: how its names look.
        provider: who answers for it.
        usable: whether a call can be made now, as far as the settings tell.
        reason: what is missing where it is not usable; never a key.
    """

    pattern: str
    provider: str
    usable: bool
    reason: str | None = None


@attrs.define
class Registry:
    """The Providers of one runtime; `connect` returns the shared HTTP client when it is needed first."""

    environ: Mapping[str, str] = attrs.field(repr=False)
    extra: Mapping[str, Provider]
    bounds: Bounds
    connect: "Callable[[], httpx.AsyncClient]" = attrs.field(repr=False)
    _made: dict[str, Provider] = attrs.field(factory=dict, repr=False)
    _scripts: dict[str, tuple[int, Provider]] = attrs.field(factory=dict, repr=False)

    def resolve(self, model: str, provider: str | None) -> ModelChoice:
        """Return the provider to call, and the model's name there.

        The name of an own provider is also a model (`mine`), and a prefix (`mine:fast`). With OPENAI_BASE_URL set,
        every name that nobody else claims is a model of that server. Raises InvalidParamsError (path `$.model` or
        `$.provider`); a missing key is an error of the call, not of the name.
        """
        if not model.strip():
            raise InvalidParamsError("$.model: must not be empty", path="$.model")
        name = provider if provider is not None else self._provider_of(model)
        if name in self.extra:
            return ModelChoice(self.extra[name], model.removeprefix(f"{name}:"))
        if name == SCRIPTED:
            return ModelChoice(self._scripted(model.removeprefix(f"{SCRIPTED}:")), model)
        if name not in BUILT_IN:
            known = ", ".join(sorted({*BUILT_IN, *self.extra}))
            raise InvalidParamsError(f"$.provider: {name!r} is unknown; there are {known}", path="$.provider")
        return ModelChoice(self._built_in(name), model)

    def _provider_of(self, model: str) -> str:
        prefix = model.partition(":")[0]
        if prefix in self.extra:
            return prefix
        for pattern, name in _NAMES:
            if pattern.match(model):
                return name
        if not endpoint(OPENAI, self.environ).official:
            return OPENAI.name
        raise InvalidParamsError(
            f"$.model: no provider is known for {model!r}; name the provider, or set {OPENAI.url_variable}"
            " where a server of your own has it",
            path="$.model",
        )

    def _built_in(self, name: str) -> Provider:
        if name not in self._made:
            self._made[name] = EchoProvider() if name == ECHO else self._over_http(name)
        return self._made[name]

    def _over_http(self, name: str) -> Provider:
        from warren.transport.providers import remote  # noqa: PLC0415 - httpx is loaded when it is needed first

        vendor = OPENAI if name == OPENAI.name else ANTHROPIC
        return remote.provider(endpoint(vendor, self.environ), self.connect, self.bounds)

    def _scripted(self, file: str) -> Provider:
        """Return the script's provider; a file that changed is read again."""
        path = Path(file)
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        if file not in self._scripts or self._scripts[file][0] != stamp:
            self._scripts[file] = (stamp, ScriptedProvider(load_script(path)))
        return self._scripts[file][1]


def default_model(environ: Mapping[str, str] | None = None) -> str:
    """Return the model of a session that names none: of the provider whose key is set, else `echo`.

    Anthropic comes first where both keys are set. A server of your own at OPENAI_BASE_URL is asked for `default`.
    """
    found = os.environ if environ is None else environ
    claude, gpt = endpoint(ANTHROPIC, found), endpoint(OPENAI, found)
    if _wanted(claude):
        return ANTHROPIC.default_model
    if _wanted(gpt):
        return OPENAI.default_model if gpt.official else "default"
    return ECHO


def known_models(environ: Mapping[str, str] | None = None) -> tuple[KnownModel, ...]:
    """Return the kinds of models that can be named, and which of them can be called now."""
    found = os.environ if environ is None else environ
    local = not endpoint(OPENAI, found).official
    return (
        KnownModel(ECHO, ECHO, usable=True),
        KnownModel("scripted:FILE", SCRIPTED, usable=True),
        _over_network("claude-*", ANTHROPIC, found),
        _over_network("gpt-*, chatgpt-*, o1, o3, o4-*", OPENAI, found),
        *([_over_network("*", OPENAI, found)] if local else ()),
    )


def _wanted(target: Endpoint) -> bool:
    return target.key is not None or not target.official


def _over_network(pattern: str, vendor: Vendor, environ: Mapping[str, str]) -> KnownModel:
    problem = endpoint(vendor, environ).problem
    return KnownModel(pattern, vendor.name, usable=problem is None, reason=problem)
