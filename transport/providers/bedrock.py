"""Anthropic's messages protocol as Amazon Bedrock has it, and the frames of its streams. No I/O."""

import base64
from typing import Any, Final
from urllib.parse import quote

import attrs

from warren.base.values import define
from warren.conversation import codec
from warren.conversation.options import ModelOptions
from warren.transport.providers import claude, wire
from warren.transport.providers.anthropic import MessagesDialect
from warren.transport.providers.dialect import no_hosted_tools
from warren.transport.providers.settings import ModelEndpoint

VERSION: Final = "bedrock-2023-05-31"
FRAMES: Final = "application/vnd.amazon.eventstream"
"""The content type of streams."""
_TYPES: Final = {
    "throttlingException": "rate_limit_error",
    "serviceUnavailableException": "overloaded_error",
    "modelTimeoutException": "timeout_error",
    "validationException": "invalid_request_error",
}
"""The types, in Anthropic's protocol, of errors within a stream; the others are failures of the server."""


class BedrockDialect(MessagesDialect):
    """Anthropic's messages protocol on Bedrock, streamed."""

    def url(self, endpoint: ModelEndpoint, model: str) -> str:
        """Return the address for requests to a model."""
        return f"{endpoint.url}/model/{quote(model, safe='')}/invoke-with-response-stream"

    def listing(self, endpoint: ModelEndpoint) -> None:
        """Return None: the server that answers calls has no list of models."""

    def headers(self, key: str | None, model: str) -> dict[str, str]:  # noqa: ARG002 - of the protocol
        """Return the headers of every request to a model."""
        return {"accept": FRAMES}

    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that a model does not have."""
        no_hosted_tools(options, "Bedrock")
        super().check(model, options)

    def head(self, model: str) -> dict[str, Any]:
        """Return the members with which the body of a request begins."""
        betas = [*claude.headers(model).values()]
        return {"anthropic_version": VERSION} | ({"anthropic_beta": betas} if betas else {})


def _new_buffer() -> Any:
    from botocore.eventstream import EventStreamBuffer  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    return EventStreamBuffer()


@define
class FrameSplitter:
    """Splits a stream of AWS's frames, which arrives cut anywhere, into the events of Anthropic's protocol.

    An exception within the stream, and a frame that is damaged, become an error of that protocol.

    Attributes:
        most: bytes that one frame may have.
        too_long: whether there were more. The stream is not split any further then.
        streams: True; see `Splitter`.
    """

    most: int
    too_long: bool = False
    streams: bool = attrs.field(default=True, init=False)
    _buffer: Any = attrs.field(factory=_new_buffer, init=False)
    _size: int = attrs.field(default=0, init=False)  # bytes of the frame that has no end yet
    _damaged: bool = attrs.field(default=False, init=False)

    def feed(self, part: bytes) -> list[bytes]:
        """Return the events that end in the next part of the stream."""
        if self.too_long or self._damaged:
            return []
        found: list[bytes] = []
        self._size += len(part)
        self._buffer.add_data(part)
        try:
            for frame in self._buffer:
                self._size -= frame.prelude.total_length
                found.append(_event(frame.headers, frame.payload))
        except Exception:  # noqa: BLE001 - the library raises errors of many kinds for a frame that is damaged
            self._damaged = True
            found.append(_error("api_error", "a frame of the stream is damaged"))
        self.too_long = self._size > self.most
        return found

    def end(self) -> list[bytes]:
        """Return nothing: a frame that is cut is none."""
        return []


def _event(headers: dict[str, Any], payload: bytes) -> bytes:
    if headers.get(":message-type") == "event":
        return base64.b64decode(wire.text_in(wire.parse_object(payload), "bytes"))
    kind = str(headers.get(":exception-type") or headers.get(":error-code") or "")
    try:
        message = wire.as_text(wire.as_object(wire.parse(payload)).get("message"))
    except ValueError:
        message = ""
    message = message or str(headers.get(":error-message") or kind)
    return _error(_TYPES.get(kind, "api_error"), message)


def _error(kind: str, message: str) -> bytes:
    return codec.encode({"type": "error", "error": {"type": kind, "message": message}})
