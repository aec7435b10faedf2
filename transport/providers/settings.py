"""Addresses and keys of the HTTP providers, from the environment. Keys stay out of every repr and message."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import attrs

from warren.values import frozen


@frozen
class Bounds:
    """Bounds on the answer of a model's server.

    Attributes:
        silence: seconds for which the server may send nothing.
        stall: seconds for which the server may send nothing of the answer; keep-alive events do not count.
        size: bytes of a streamed answer, decompressed. An answer in one piece, or one event or line of a stream,
            may have a 64th of it, because it is parsed in one step, which blocks other tasks.
    """

    silence: float = 300.0
    stall: float = 1800.0
    size: int = 64 * 1024 * 1024

    @property
    def piece(self) -> int:
        """The most bytes that are parsed in one step."""
        return max(1, self.size // 64)


@frozen
class Vendor:
    """The constants of an HTTP provider.

    Attributes:
        name: the provider's name.
        key_variable: the environment variable with the key.
        url_variable: the environment variable with another base URL.
        official_url: the base URL if that variable is not set.
        default_model: the model of sessions that name none.
    """

    name: str
    key_variable: str
    url_variable: str
    official_url: str
    default_model: str


OPENAI: Final = Vendor("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1", "gpt-5-mini")
ANTHROPIC: Final = Vendor(
    "anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com", "claude-sonnet-5"
)


@frozen
class ModelEndpoint:
    """The address and the key of an HTTP provider.

    Attributes:
        vendor: the provider.
        url: the base URL, without a slash at the end.
        key: the key; None if the environment has none.
    """

    vendor: Vendor
    url: str = attrs.field(repr=False)  # a URL may contain a password
    key: str | None = attrs.field(default=None, repr=False)

    @cached_property
    def official(self) -> bool:
        """Whether requests go to the vendor itself, not to another server with the same protocol."""
        return self.host == urlsplit(self.vendor.official_url).hostname

    @cached_property
    def host(self) -> str:
        """The host, and the port if the URL has one: the part of the address that a message may show."""
        try:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return ""
        return f"{parts.hostname}{port}" if parts.hostname else ""

    @cached_property
    def problem(self) -> str | None:
        """The reason why the provider cannot be called, for a person; None if no setting is missing."""
        return self.url_problem or self.key_problem

    @property
    def url_problem(self) -> str | None:
        """The problem with the address, for a person; None if there is none."""
        if self.host and urlsplit(self.url).scheme in ("http", "https"):
            return None
        return f"{self.vendor.url_variable} is not an http:// or https:// address"

    @property
    def key_problem(self) -> str | None:
        """The problem with the key, for a person; None if there is none. Only the vendor's own server must have one."""
        if self.key is None:
            return f"{self.vendor.key_variable} is not set" if self.official else None
        if not (self.key.isascii() and self.key.isprintable()):
            return f"{self.vendor.key_variable} holds characters that no key has"
        return None


def endpoint(vendor: Vendor, environ: Mapping[str, str]) -> ModelEndpoint:
    """Read the address and the key of a provider; blank variables count as unset."""
    url = environ.get(vendor.url_variable, "").strip() or vendor.official_url
    key = environ.get(vendor.key_variable, "").strip() or None
    return ModelEndpoint(vendor, url.rstrip("/"), key)
