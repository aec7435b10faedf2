"""The providers of the models of the tests, and files to send to them."""

from functools import partial
from typing import Final

import httpx

from tests.transport.providers.calls import CLAUDE, GEMINI, GPT, RESPONSES, environ, provider_of, servers
from warren.conversation.attachments import Attachment
from warren.transport.providers.encoder import Encoder
from warren.transport.providers.pace import RequestPace
from warren.transport.providers.remote import DIALECTS, HttpProvider
from warren.transport.providers.settings import Bounds, endpoints

BUDGETED: Final = "claude-sonnet-4-5"  # it reasons by a budget
MODELS: Final = (CLAUDE, BUDGETED, GPT, RESPONSES, GEMINI)
PHOTO: Final = Attachment("image/png", "a" * 64, 9, "photo.png")
PAPER: Final = Attachment("application/pdf", "b" * 64, 9, "paper.pdf")
NOTE: Final = Attachment("text/plain", "c" * 64, 9, "note.txt")
CHART: Final = Attachment("image/jpeg", "d" * 64, 9, "chart.jpg")


def provider(model: str) -> HttpProvider:
    """Return the provider of a model."""
    found = endpoints(environ(), servers())
    name = provider_of(model) or {GEMINI: "gemini"}.get(model, "anthropic")
    return HttpProvider(found[name], DIALECTS[found[name].dialect], httpx.AsyncClient, Bounds())


def encoder(target: HttpProvider) -> Encoder:
    """Return an encoder of the requests to a provider."""
    return Encoder(partial(target.dialect.context, target.endpoint), RequestPace())
