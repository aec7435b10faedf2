"""Anthropic's messages protocol as Google's Vertex AI has it: the model is in the address. No I/O."""

from typing import Any, Final
from urllib.parse import quote

from warren.transport.providers import claude
from warren.transport.providers.anthropic import MessagesDialect
from warren.transport.providers.settings import ModelEndpoint

VERSION: Final = "vertex-2023-10-16"


class VertexDialect(MessagesDialect):
    """Anthropic's messages protocol on Vertex AI, streamed."""

    def url(self, endpoint: ModelEndpoint, model: str) -> str:
        """Return the address for requests to a model."""
        return f"{endpoint.url}/models/{quote(model, safe='@')}:streamRawPredict"

    def listing(self, endpoint: ModelEndpoint) -> None:
        """Return None: a project has no list of the models that it may call."""

    def headers(self, key: str | None, model: str) -> dict[str, str]:  # noqa: ARG002 - of the protocol
        """Return the headers of every request to a model."""
        return claude.headers(model)

    def head(self, model: str) -> dict[str, Any]:  # noqa: ARG002 - of the protocol
        """Return the members with which the body of a request begins."""
        return {"anthropic_version": VERSION, "stream": True}
