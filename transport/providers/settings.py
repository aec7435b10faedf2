"""Addresses and keys of the HTTP providers, from the environment. Keys stay out of every repr and message."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Literal
from urllib.parse import urlsplit

import attrs

from warren.base import extras
from warren.base.values import frozen
from warren.settings.config import Dialect, ModelServer, content_of

Cloud = Literal["azure", "bedrock", "vertex"]
"""The clouds that sell the models of others, each with credentials of its own kind."""


@frozen
class Bounds:
    """Bounds on the answer of a model's server.

    Attributes:
        silence: seconds for which the server may send nothing.
        stall: seconds for which the server may send nothing of the answer; keep-alive events do not count.
        size: bytes of a streamed answer, decompressed. An answer in one piece, or one event or line of a stream,
            may have a 64th of it beside its files, because it is parsed in one step, which blocks other tasks.
        wait: seconds that a call may wait for the rate limit of its key.
    """

    silence: float = 300.0
    stall: float = 1800.0
    size: int = 64 * 1024 * 1024
    wait: float = 60.0

    @property
    def content(self) -> int:
        """The most characters of texts and arguments that an answer may have."""
        return content_of(self.size)

    @property
    def files(self) -> int:
        """The most bytes of files, in base64, that an answer may have beyond its size; servers repeat them."""
        return 3 * self.size

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
        dialect: the protocol of its servers.
        own_dialect: the protocol at the official URL.
        second_key_variable: the variable that has the key if the first one is not set.
        cloud: the cloud, if its servers are not those of the maker of the models.
        where: the place where a person finds the settings, behind the message on a missing one.
    """

    name: str
    key_variable: str
    url_variable: str
    official_url: str
    default_model: str
    dialect: Dialect
    own_dialect: Dialect
    second_key_variable: str | None = None
    cloud: Cloud | None = None
    where: str = ""


OPENAI: Final = Vendor(
    "openai",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "https://api.openai.com/v1",
    "gpt-5-mini",
    "openai-chat",
    "openai-responses",
)
ANTHROPIC: Final = Vendor(
    "anthropic",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "https://api.anthropic.com",
    "claude-sonnet-5",
    "anthropic",
    "anthropic",
)
GEMINI: Final = Vendor(
    "gemini",
    "GEMINI_API_KEY",
    "GOOGLE_GEMINI_BASE_URL",
    "https://generativelanguage.googleapis.com/v1beta",
    "gemini-3.8-flash",
    "gemini",
    "gemini",
    "GOOGLE_API_KEY",
)
VENDORS: Final[Mapping[str, Vendor]] = {vendor.name: vendor for vendor in (ANTHROPIC, OPENAI, GEMINI)}
AZURE: Final = Vendor(
    "azure",
    "AZURE_OPENAI_API_KEY",
    "AZURE_OPENAI_ENDPOINT",
    "",
    "gpt-5-mini",
    "openai-responses",
    "openai-responses",
    cloud="azure",
    where="; Azure's portal shows it under Keys and Endpoint of the resource",
)
VERTEX: Final = Vendor(
    "vertex",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "ANTHROPIC_VERTEX_BASE_URL",
    "",
    "claude-sonnet-5",
    "anthropic",
    "anthropic",
    cloud="vertex",
    where="; the project and the region are those of Google Cloud in which Claude is enabled",
)
BEDROCK: Final = Vendor(
    "bedrock",
    "AWS_BEARER_TOKEN_BEDROCK",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "",
    "",
    "anthropic",
    "anthropic",
    cloud="bedrock",
    where="; it is a region of AWS in which Claude is enabled, such as us-east-1",
)
CLOUDS: Final[Mapping[str, Vendor]] = {vendor.name: vendor for vendor in (AZURE, BEDROCK, VERTEX)}
"""Providers whose models are called by the prefix of their name alone: the names are those of other vendors' models."""
_OF_DIALECT: Final[Mapping[Dialect, Vendor]] = {
    dialect: vendor for vendor in VENDORS.values() for dialect in (vendor.dialect, vendor.own_dialect)
}


@frozen
class ModelEndpoint:
    """The address and the key of an HTTP provider.

    Attributes:
        vendor: the provider.
        url: the base URL, without a slash at the end.
        key: the key; None if the environment has none.
        lacking: the variable without which a cloud has no address; None if it is set.
        region: the region of AWS.
        without: what the server does not take of its protocol; see `warren.settings.config.ModelServer`.
        think_tags: whether reasoning between tags is parted from the text of answers.
    """

    vendor: Vendor
    url: str = attrs.field(repr=False)  # a URL may contain a password
    key: str | None = attrs.field(default=None, repr=False)
    lacking: str | None = None
    region: str = ""
    without: frozenset[str] = frozenset()
    think_tags: bool = True

    @cached_property
    def has_think_tags(self) -> bool:
        """Whether answers may have reasoning between tags: the makers of protocols send it apart."""
        return self.think_tags and not self.official

    @cached_property
    def official(self) -> bool:
        """Whether requests go to the vendor itself or a cloud, not to another server with the same protocol."""
        return self.vendor.cloud is not None or self.host == urlsplit(self.vendor.official_url).hostname

    @property
    def dialect(self) -> Dialect:
        """The protocol."""
        return self.vendor.own_dialect if self.official else self.vendor.dialect

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
        if self.lacking is not None:
            return f"{self.lacking} is not set{self.vendor.where}"
        if self.host and urlsplit(self.url).scheme in ("http", "https"):
            return None
        return f"{self.vendor.url_variable} is not an http:// or https:// address"

    @property
    def key_problem(self) -> str | None:
        """The problem with the key, for a person; None if there is none. Only the vendor's own server must have one."""
        if self.vendor.cloud == "azure" and self.key is None:
            problem = extras.missing("azure", "without a key it needs")
            return problem and f"{self.vendor.key_variable} is not set{self.vendor.where}; {problem}"
        if self.vendor.cloud not in (None, "azure"):
            problem = extras.missing(self.vendor.name, "it needs")
            if problem is not None or self.key is None:
                return problem
        if self.key is None:
            return f"{self.vendor.key_variable} is not set{self.vendor.where}" if self.official else None
        if not (self.key.isascii() and self.key.isprintable()):
            return f"{self.vendor.key_variable} holds characters that no key has"
        return None


def endpoint(vendor: Vendor, environ: Mapping[str, str]) -> ModelEndpoint:
    """Read the address and the key of a provider; blank variables count as unset."""
    url = environ.get(vendor.url_variable, "").strip() or vendor.official_url
    return _at(vendor, url, environ)


def _at(vendor: Vendor, url: str, environ: Mapping[str, str]) -> ModelEndpoint:
    """Return the endpoint at a URL; the clouds complete it by the place of the models within them."""
    base = url.strip().rstrip("/")
    match vendor.cloud:
        case "azure":
            lacking = None if base else vendor.url_variable
            path = "" if lacking or urlsplit(base).path else "/openai/v1"
            return ModelEndpoint(vendor, base + path, _key(vendor, environ), lacking)
        case "vertex":
            region = environ.get("CLOUD_ML_REGION", "").strip()
            project = _first(environ, "ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
            if not region or project is None:
                lacking = "ANTHROPIC_VERTEX_PROJECT_ID" if project is None else "CLOUD_ML_REGION"
                return ModelEndpoint(vendor, "", lacking=lacking)
            place = f"projects/{project}/locations/{region}/publishers/anthropic"
            return ModelEndpoint(vendor, f"{base or _vertex(region)}/{place}")
        case "bedrock":
            if (found := _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION")) is None:
                return ModelEndpoint(vendor, "", lacking="AWS_REGION")
            place = base or f"https://bedrock-runtime.{found}.amazonaws.com"
            return ModelEndpoint(vendor, place, _key(vendor, environ), region=found)
        case None:
            return ModelEndpoint(vendor, base, _key(vendor, environ))


def _vertex(region: str) -> str:
    """Return the base URL of a region, of several (`us`, `eu`), or of all (`global`)."""
    if region == "global":
        return "https://aiplatform.googleapis.com/v1"
    if region in ("us", "eu"):
        return f"https://aiplatform.{region}.rep.googleapis.com/v1"
    return f"https://{region}-aiplatform.googleapis.com/v1"


def endpoints(environ: Mapping[str, str], servers: Iterable[ModelServer] = ()) -> dict[str, ModelEndpoint]:
    """Return the address and the key of each provider: vendors, clouds, and servers, which may replace one."""
    found = {name: endpoint(vendor, environ) for name, vendor in {**VENDORS, **CLOUDS}.items()}
    return found | {server.name: _endpoint_of(server, environ) for server in servers}


def _endpoint_of(server: ModelServer, environ: Mapping[str, str]) -> ModelEndpoint:
    known = VENDORS.get(server.name) or CLOUDS.get(server.name)
    dialect = server.dialect or (known.dialect if known is not None else "openai-chat")
    vendor = Vendor(
        server.name,
        server.key_env or (known.key_variable if known is not None else server.key_variable),
        f"providers.{server.name}.base_url",
        _OF_DIALECT[dialect].official_url,
        known.default_model if known is not None else "default",
        dialect,
        known.own_dialect if known is not None and server.dialect is None else dialect,
        known.second_key_variable if known is not None and server.key_env is None else None,
        known.cloud if known is not None else None,
        known.where if known is not None else "",
    )
    at = _at(vendor, server.base_url, environ)
    return attrs.evolve(at, without=frozenset(server.without), think_tags=server.think_tags)


def _key(vendor: Vendor, environ: Mapping[str, str]) -> str | None:
    return _first(environ, vendor.key_variable, vendor.second_key_variable)


def _first(environ: Mapping[str, str], *names: str | None) -> str | None:
    """Return the first variable that is not blank."""
    found = (environ.get(name, "").strip() for name in names if name is not None)
    return next((value for value in found if value), None)
