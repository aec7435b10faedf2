"""Questions to the servers of models outside of any session: the models that they list, and whether a call succeeds."""

import os
from base64 import b64decode
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

import attrs
import trio

from warren.base.errors import InvalidParamsError, ProviderCause, ProviderError
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.messages import UserMessage
from warren.conversation.options import ModelOptions
from warren.models.model import Files, ModelRequest
from warren.models.tools import ToolSpec
from warren.settings.config import ModelServer
from warren.transport.providers.http.client import new_client
from warren.transport.providers.rate import RateLimit
from warren.transport.providers.registry import is_configured
from warren.transport.providers.remote import HttpProvider, provider
from warren.transport.providers.settings import CLOUDS, Bounds, ModelEndpoint, endpoints

Problem = Literal["key", "address", "quota", "model", "certificate", "answer"]
PROBLEMS: Final[tuple[Problem, ...]] = get_args(Problem)
BOUNDS: Final = Bounds(silence=30.0, stall=60.0)
ANSWER_TOKENS: Final = 16
"""The cap of the call's answer, and the smallest one that every server takes."""
_PROBLEM_OF: Final[Mapping[str | None, Problem]] = {
    "unauthorized": "key",
    "forbidden": "key",
    "quota": "quota",
    "rate_limited": "quota",
    "not_found": "model",
    "connection": "address",
    "bad_address": "address",
    "timeout": "address",
    "certificate": "certificate",
}
NO_MODELS: Final[Mapping[str, str]] = {}
_ELSEWHERE: Final[tuple[ProviderCause, ...]] = ("not_found", "bad_response")


@frozen
class Listed:
    """The answer of one provider to the question for its models.

    Attributes:
        provider: its name.
        models: the names of its models.
        error: the reason if there is no answer.
    """

    provider: str
    models: tuple[str, ...] = ()
    error: str | None = None


@frozen
class Checked:
    """The result of one cheap call.

    Attributes:
        provider: the name of the provider.
        model: the model that was called; None if no model is known.
        problem: the setting that is wrong, or `answer` if the server fails otherwise; None if the call succeeded.
        message: one sentence on the problem.
        settings: the lines of a `[providers.NAME]` table for a server that is not a vendor's own; None for others.
    """

    provider: str
    model: str | None
    problem: Problem | None = None
    message: str | None = None
    settings: str | None = None


async def list_live(
    environ: Mapping[str, str] | None = None, servers: Iterable[ModelServer] = (), only: str | None = None
) -> tuple[Listed, ...]:
    """Ask each configured provider for its models, all at the same time.

    Args:
        environ: the variables with keys and addresses; None is the environment of the process.
        servers: more servers.
        only: the only provider to ask, configured or not; None asks all that have a key or an address of their own.
    """

    async def ask(one: HttpProvider) -> Listed:
        name = one.endpoint.vendor.name
        try:
            return Listed(name, await one.listed())
        except ProviderError as exc:
            return Listed(name, error=exc.message)

    found: dict[str, Listed] = {}
    async with new_client() as client, trio.open_nursery() as nursery:
        targets = _targets(environ, servers, only)

        async def one(target: ModelEndpoint) -> None:
            found[target.vendor.name] = await ask(provider(target, lambda: client, BOUNDS, RateLimit(BOUNDS.wait)))

        for target in targets:
            nursery.start_soon(one, target)
    return tuple(found[target.vendor.name] for target in targets)


async def check_live(
    environ: Mapping[str, str] | None = None,
    servers: Iterable[ModelServer] = (),
    only: str | None = None,
    models: Mapping[str, str] = NO_MODELS,
) -> tuple[Checked, ...]:
    """Make one cheap call to each configured provider, and to each that `models` names; see `list_live`.

    `models` are the models to call, by their providers. Without one that is the vendor's default model, and the first
    listed one of a server of your own.
    """
    found: dict[str, Checked] = {}
    async with new_client() as client, trio.open_nursery() as nursery:
        targets = _targets(environ, servers, only, models)

        async def one(target: ModelEndpoint) -> None:
            asked = provider(target, lambda: client, BOUNDS, RateLimit(BOUNDS.wait))
            found[target.vendor.name] = await _check(asked, models.get(target.vendor.name))

        for target in targets:
            nursery.start_soon(one, target)
    return tuple(found[target.vendor.name] for target in targets)


def _targets(
    environ: Mapping[str, str] | None, servers: Iterable[ModelServer], only: str | None, named: Container[str] = ()
) -> list[ModelEndpoint]:
    found = endpoints(os.environ if environ is None else environ, servers)
    if only is not None:
        return [found[only]] if only in found else []
    return [target for name, target in found.items() if name in named or is_configured(target)]


async def _check(asked: HttpProvider, model: str | None) -> Checked:
    target = asked.endpoint
    name = target.vendor.name
    listed: tuple[str, ...] = ()
    try:
        listed = await asked.listed()
    except ProviderError as exc:
        if exc.cause not in _ELSEWHERE:  # a server without a list may still answer calls
            return _failed(name, model, exc)
    called = model or (target.vendor.default_model or None if target.official else next(iter(listed), None))
    if called is None:
        return Checked(name, None, "model", "the server lists no models; name one with --model")
    request = ModelRequest(called, [UserMessage("Say yes.")], options=ModelOptions(max_tokens=ANSWER_TOKENS))
    try:
        try:
            await asked.complete(request, lambda _piece: None)
        except ProviderError as exc:
            if exc.cause != "stream_broken":  # it may be a server that never gives a stop reason
                raise
            await asked.complete(request, lambda _piece: None)
    except ProviderError as exc:
        return _with_names(_failed(name, called, exc), listed)
    return Checked(name, called, settings=None if target.official else await _settings(asked, request))


async def _settings(asked: HttpProvider, request: ModelRequest) -> str:
    """Return a table of settings for a server, which has answered: try what it may not take of the protocol."""
    target, refused = asked.endpoint, list[str]()
    trials: tuple[tuple[str, dict[str, Any]], ...] = (
        ("tools", {"tools": (_TOOL,)}),
        ("data", {"answer_schema": _TOOL.input_schema}),
        ("images", {"messages": [UserMessage("Say yes.", (_IMAGE,))], "files": Files(frozenset({"image"}), _pixel)}),
        ("reasoning", {"options": attrs.evolve(request.options, effort="low")}),
    )
    for name, changes in trials:
        trial = attrs.evolve(request, **changes)
        try:
            asked.check(trial.model, trial.options)
            await asked.complete(trial, lambda _piece: None)
        except (InvalidParamsError, ProviderError) as exc:
            refused.append(f"# {name}: {' '.join(exc.message.split())}")
    learned = asked.learned(request.model)
    rows = [f"[providers.{target.vendor.name}]", f"base_url = {_quoted(_without_password(target.url))}"]
    rows.append(f"dialect = {_quoted(target.dialect)}")
    if learned.without:
        rows.append(f"without = [{', '.join(map(_quoted, sorted(learned.without)))}]")
    return "\n".join([*rows, *refused])


_TOOL: Final = ToolSpec(
    "note", "Takes a note.", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
)
_PIXEL: Final = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFElEQVR4nGP4TyJgGNUwqmH4agAAr639H708R/EAAAAASUVORK5CYII="
)
_IMAGE: Final = Attachment("image/png", "0" * 64, len(_PIXEL), "pixel.png")


async def _pixel(_file: Attachment, start: int, size: int) -> bytes:
    return _PIXEL[start : start + size]


def _quoted(text: str) -> str:
    """Return a text as TOML and JSON have it."""
    return codec.encode_whole(text).decode()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _failed(name: str, model: str | None, error: ProviderError) -> Checked:
    problem = _PROBLEM_OF.get(error.cause, "answer")
    if problem == "model" and model is None:
        problem = "address"
    return Checked(name, model, problem, error.message)


def _with_names(checked: Checked, listed: tuple[str, ...]) -> Checked:
    """Return a result that names similar models if the server does not know the model."""
    if checked.problem != "model" or checked.model is None:
        return checked
    if checked.provider in CLOUDS and not listed:
        return checked
    if not listed:
        return attrs.evolve(checked, problem="address")
    near = get_close_matches(checked.model, listed)
    hint = f"; it has {', '.join(near)}" if near else f"; it lists {len(listed)} models: `warren models --live`"
    return attrs.evolve(checked, message=f"{checked.message}{hint}")
