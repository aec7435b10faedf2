"""What the environment says of the HTTP providers: addresses and keys. Keys stay out of every repr and message."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import attrs


@attrs.frozen
class Bounds:
    """How much and how long a model's server may send; times in seconds.

    Attributes:
        silence: how long it may send nothing.
        stall: how long it may go on without sending any of the answer; what only keeps the connection open does not
            count.
        size: bytes of a streamed answer, decompressed. An answer in one piece, or one event of a stream, may have a
            64th of it: it is parsed at once, which no other task can interrupt.
    """

    silence: float = 300.0
    stall: float = 1800.0
    size: int = 64 * 1024 * 1024

    @property
    def piece(self) -> int:
        """The most bytes that are parsed at once."""
        return max(1, self.size // 64)


@attrs.frozen
class Vendor:
    """What is fixed of one HTTP provider.

    Attributes:
        name: the provider's name.
        key_variable: the environment variable with the key.
        url_variable: the environment variable with another base URL.
        official_url: the base URL without it.
        default_model: what a session gets that names no model.
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


@attrs.frozen
class Endpoint:
    """Where one HTTP provider is reached, and with which key.

    Attributes:
        vendor: the provider.
        url: its base URL, without a slash at the end.
        key: the key; None where the environment has none.
    """

    vendor: Vendor
    url: str = attrs.field(repr=False)  # it may hold a password
    key: str | None = attrs.field(default=None, repr=False)

    @property
    def official(self) -> bool:
        """Whether the requests go to the vendor itself, not to a server that speaks its protocol."""
        return self.host == urlsplit(self.vendor.official_url).hostname

    @property
    def host(self) -> str:
        """The host, with its port where one is named: what a message may show of the address."""
        try:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return ""
        return f"{parts.hostname}{port}" if parts.hostname else ""

    @property
    def problem(self) -> str | None:
        """Why it cannot be called now, for a person; None where nothing is known to be missing."""
        return self.url_problem or self.key_problem

    @property
    def url_problem(self) -> str | None:
        """What is wrong with the address."""
        if self.host and urlsplit(self.url).scheme in ("http", "https"):
            return None
        return f"{self.vendor.url_variable} is not an http:// or https:// address"

    @property
    def key_problem(self) -> str | None:
        """What is wrong with the key; a server that is not the vendor's may want none."""
        if self.key is None:
            return f"{self.vendor.key_variable} is not set" if self.official else None
        if not (self.key.isascii() and self.key.isprintable()):
            return f"{self.vendor.key_variable} holds characters that no key has"
        return None


def endpoint(vendor: Vendor, environ: Mapping[str, str]) -> Endpoint:
    """Read a provider's address and key; blank variables count as unset."""
    url = environ.get(vendor.url_variable, "").strip() or vendor.official_url
    key = environ.get(vendor.key_variable, "").strip() or None
    return Endpoint(vendor, url.rstrip("/"), key)
