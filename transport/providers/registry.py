"""The choice of a provider by the name of a model."""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from warren.agents.agent import with_workers
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.values import define, frozen
from warren.conversation.attachments import ANY_KIND, Kind
from warren.conversation.options import ModelOptions
from warren.models.model import ModelChoice, Provider
from warren.settings.config import Config, ModelServer
from warren.transport.providers.dialect import no_hosted_tools
from warren.transport.providers.echo import EchoProvider
from warren.transport.providers.settings import ANTHROPIC, GEMINI, OPENAI, VENDORS, Bounds, ModelEndpoint, endpoints

if TYPE_CHECKING:
    import httpx

    from warren.transport.providers.rate import RateLimit
    from warren.transport.providers.remote import HttpProvider

SCRIPTED: Final = "scripted"
ECHO: Final = "echo"
_NAMES: Final = (
    (re.compile(r"claude-"), ANTHROPIC.name),
    (re.compile(r"(gpt-|chatgpt-|o\d+(-|$))"), OPENAI.name),
    (re.compile(r"gemini-"), GEMINI.name),
    (re.compile(r"echo$"), ECHO),
    (re.compile(r"scripted:"), SCRIPTED),
)


@frozen
class KnownModel:
    """A family of models.

    Attributes:
        pattern: the pattern of their names.
        provider: the name of their provider.
        usable: whether the settings are complete enough for a call.
        reason: the missing setting if they are not; never a key.
    """

    pattern: str
    provider: str
    usable: bool
    reason: str | None = None


@define
class ModelRegistry:
    """The providers of one runtime, made on first use.

    Attributes:
        endpoints: the addresses and the keys, by the names of their providers.
        extra: the program's own providers, by name.
        bounds: the bounds on answers.
        connect: returns the shared HTTP client.
        scripts: the files that may be named as scripts; None lets any file be named.
    """

    endpoints: Mapping[str, ModelEndpoint] = attrs.field(repr=False)
    extra: dict[str, Provider]
    bounds: Bounds
    connect: "Callable[[], httpx.AsyncClient]" = attrs.field(repr=False)
    scripts: Collection[str] | None = None
    _made: "dict[str, HttpProvider]" = attrs.field(factory=dict, repr=False)
    _limits: "dict[tuple[str, str], RateLimit]" = attrs.field(factory=dict, repr=False)
    _echo: Provider = attrs.field(factory=EchoProvider, repr=False)
    _players: dict[str, tuple[int, Provider]] = attrs.field(factory=dict, repr=False)

    def resolve(self, model: str, provider: str | None) -> ModelChoice:
        """Return the provider to call, and the model's name there.

        The name of one of the program's own providers is also a model (`mine`) and a prefix (`mine:fast`), and that of
        a named server is a prefix. If OPENAI_BASE_URL is set, every name that matches no other provider is a model of
        that server. A missing key is no error here: see `ModelChoice.check_ready`.

        Raises:
            InvalidParamsError: if no provider is known for the model (path `$.model`), or the named provider is unknown
                (path `$.provider`).
        """
        name = self._named(model, provider)
        if name in self.extra:
            own = self.extra[name]
            kinds = getattr(own, "kinds", frozenset[Kind]())
            return ModelChoice(own, model.removeprefix(f"{name}:"), name, kinds=kinds)
        if name == SCRIPTED:
            player = self._scripted(model.removeprefix(f"{SCRIPTED}:"))
            return ModelChoice(player, model, name, kinds=ANY_KIND, lasts=False)
        if name == ECHO:
            return ModelChoice(self._echo, model, name, _check_echo, kinds=ANY_KIND)
        if name not in VENDORS:
            model = model.removeprefix(f"{name}:")
        over_http = self._over_http(name)
        server, check = over_http.endpoint.url, partial(over_http.check, model)
        return ModelChoice(over_http, model, name, check, server=server, check_ready=over_http.check_ready)

    def add(self, name: str, provider: Provider) -> None:
        """Take in a provider of the program's own."""
        self.extra[name] = provider

    def check_defaults(self, config: Config) -> None:
        """Refuse settings whose models no session could have. The clients of servers are not imported for it.

        Raises InvalidParamsError with the path of the setting.
        """
        self._check(config.model, config.provider)
        for place, model in enumerate(config.fallback or ()):
            try:
                self._check(model, None)
            except InvalidParamsError as exc:
                raise exc.of(f"$.fallback[{place}]") from None
        for place, agent in enumerate(config.agents):
            for each in with_workers((agent,), {})[0]:
                options = each.spec.options
                if options.model is not None:
                    try:
                        self._check(options.model, options.provider)
                    except InvalidParamsError as exc:
                        raise exc.of(f"$.agents[{place}].{'model' if each is agent else 'tools'}") from None

    def _check(self, model: str, provider: str | None) -> None:
        """Raise the error that `resolve` would raise."""
        name = self._named(model, provider)
        if name in self.extra or name not in self.endpoints:
            self.resolve(model, provider)

    def _named(self, model: str, provider: str | None) -> str:
        """Return the name of the provider of a model, which there is. Raises as `resolve`."""
        if not model.strip():
            raise InvalidParamsError.at("$.model", "must not be empty")
        if provider is None:
            return self.provider_of(model)
        if provider in self.endpoints or provider in self.extra or provider in {ECHO, SCRIPTED}:
            return provider
        known = ", ".join(sorted({*self.endpoints, ECHO, SCRIPTED, *self.extra}))
        raise InvalidParamsError.at("$.provider", f"{provider!r} is unknown; there are {known}")

    def provider_of(self, model: str) -> str:
        """Return the name of a model's provider. Raises InvalidParamsError, path `$.model`, if it is unknown."""
        prefix = model.partition(":")[0]
        if prefix in self.extra or (prefix != model and prefix in self.endpoints.keys() - VENDORS.keys()):
            return prefix
        known = _known_provider_of(model)
        if known is not None:
            return known
        if not self.endpoints[OPENAI.name].official:
            return OPENAI.name
        raise _unknown(model)

    def _over_http(self, name: str) -> "HttpProvider":
        made = self._made.get(name)
        if made is None:
            from warren.transport.providers import remote  # noqa: PLC0415 - httpx is imported on first use

            target = self.endpoints[name]
            made = self._made[name] = remote.provider(target, self.connect, self.bounds, self._limit_of(target))
        return made

    def _limit_of(self, target: ModelEndpoint) -> "RateLimit":
        """Return the rate limit of a key at a server: servers with several names share it."""
        from warren.transport.providers.rate import RateLimit  # noqa: PLC0415 - it is imported on first use, as httpx

        key = target.url, hashlib.sha256((target.key or "").encode()).hexdigest()
        return self._limits.setdefault(key, RateLimit(self.bounds.wait))

    def waiting(self) -> Mapping[str, int]:
        """Return the numbers of calls that wait for the rate limits of their keys, by the names of the providers."""
        return {name: made.limit.waiting for name, made in self._made.copy().items()}

    def _scripted(self, file: str) -> Provider:
        """Return the provider of a script; a changed file is read again.

        A file that may not be named is not looked at: whether it exists is not for the caller to know.
        """
        if self.scripts is not None and file not in self.scripts:
            raise _unknown(f"{SCRIPTED}:{file}")
        from warren.transport.providers.scripted import ScriptedModel  # noqa: PLC0415 - few have a script

        path = Path(file)
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        if file not in self._players or self._players[file][0] != stamp:
            self._players[file] = (stamp, ScriptedModel.from_file(path, keep_requests=False))
        return self._players[file][1]


def _unknown(model: str) -> InvalidParamsError:
    return InvalidParamsError.at(
        "$.model",
        f"no provider is known for {model!r}; name the provider, or set {OPENAI.url_variable}"
        " if a server of your own has the model",
    )


def scripts_of(config: Config) -> Collection[str] | None:
    """Return the files that sessions may name as scripts: those that the settings name; None for any file."""
    if config.any_script:
        return None
    named = {config.model, *(config.fallback or ()), *config.models}
    scripts = {name.removeprefix(f"{SCRIPTED}:") for name in named if name.startswith(f"{SCRIPTED}:")}
    return scripts | {config.model} if config.provider == SCRIPTED else scripts


def _check_echo(options: ModelOptions) -> None:
    """Refuse tools of the provider. A script takes them: it stands for any model, as that of a recording."""
    try:
        no_hosted_tools(options, ECHO)
    except FieldValueError as exc:
        raise exc.refusal() from None


@lru_cache
def _known_provider_of(model: str) -> str | None:
    return next((name for pattern, name in _NAMES if pattern.match(model)), None)


def default_model(
    environ: Mapping[str, str] | None = None, servers: Iterable[ModelServer] = (), provider: str | None = None
) -> str:
    """Return the model for sessions that name none: that of the provider with a key in the environment, else `echo`.

    If several keys are set, Anthropic comes first, and OpenAI second. The model of a server of your own is `default`.

    Args:
        environ: the variables with keys and addresses; None is the environment of the process.
        servers: more servers.
        provider: the provider of such sessions; None lets the keys decide.
    """
    found = endpoints(os.environ if environ is None else environ, servers)
    if provider in found:
        return _default_of(found[provider])
    return next((_default_of(found[name]) for name in VENDORS if is_configured(found[name])), ECHO)


def provider_of(model: str, environ: Mapping[str, str], servers: Iterable[ModelServer] = ()) -> str:
    """Return the name of the provider of a model. Raises InvalidParamsError, path `$.model`, if it is unknown."""
    return ModelRegistry(endpoints(environ, servers), {}, Bounds(), _nothing).provider_of(model)


def _nothing() -> "httpx.AsyncClient":
    raise AssertionError("nobody is called")


def _default_of(target: ModelEndpoint) -> str:
    own = target.official or target.vendor.dialect != OPENAI.dialect
    return target.vendor.default_model if own else "default"


def known_models(
    environ: Mapping[str, str] | None = None, servers: Iterable[ModelServer] = ()
) -> tuple[KnownModel, ...]:
    """Return all families of models, and for each whether it can be called now; see `default_model`."""
    found = endpoints(os.environ if environ is None else environ, servers)
    return (
        KnownModel(ECHO, ECHO, usable=True),
        KnownModel("scripted:FILE", SCRIPTED, usable=True),
        _over_network("claude-*", found[ANTHROPIC.name]),
        _over_network("gpt-*, chatgpt-*, o1, o3, o4-*", found[OPENAI.name]),
        _over_network("gemini-*", found[GEMINI.name]),
        *(_over_network(f"{name}:*", each) for name, each in found.items() if name not in VENDORS),
        *([] if found[OPENAI.name].official else [_over_network("*", found[OPENAI.name])]),
    )


def is_configured(target: ModelEndpoint) -> bool:
    """Return whether a provider has a key, or an address of its own. A cloud needs a place and a model."""
    if target.vendor.cloud is not None:
        return bool(target.url and target.vendor.default_model)
    return target.key is not None or not target.official


def _over_network(pattern: str, target: ModelEndpoint) -> KnownModel:
    return KnownModel(pattern, target.vendor.name, usable=target.problem is None, reason=target.problem)
