"""The credentials of clouds, as headers of each request."""

import re
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Protocol

import attrs
import httpx
import trio

from warren.base.errors import ProviderCause, ProviderError
from warren.base.values import define, frozen
from warren.transport.providers.settings import ModelEndpoint

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
ENTRA_SCOPE: Final = "https://cognitiveservices.azure.com/.default"
ENTRA_MARGIN: Final = 300.0
"""Seconds before its end at which a token of Entra ID is replaced: Azure's library gives no token nearer to its end."""
_ENTRA_PROBLEM: Final = re.compile(r"\bAADSTS\d+")


class Authorizer(Protocol):
    """The source of the headers that authorize requests to a cloud."""

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:
        """Return the headers that authorize a request, which has all of its other headers.

        Raises ProviderError if there are no credentials.
        """


@frozen
class KeyHeader:
    """A key in a header of its own.

    Attributes:
        endpoint: the address and the key.
        header: the header's name.
    """

    endpoint: ModelEndpoint
    header: str

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:  # noqa: ARG002 - of the protocol
        """Return the key; see `Authorizer`."""
        assert self.endpoint.key is not None  # noqa: S101 - for the type checker: a cloud without a key has a token
        return {self.header: self.endpoint.key}


@frozen
class BearerKey:
    """A key that is sent as a bearer token.

    Attributes:
        endpoint: the address and the key.
    """

    endpoint: ModelEndpoint

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:  # noqa: ARG002 - of the protocol
        """Return the key; see `Authorizer`."""
        return {"authorization": f"Bearer {self.endpoint.key}"}


@define(eq=False)
class GoogleToken:
    """A token of Google's application default credentials, taken from the environment of the process.

    It is kept until some minutes before it expires. A thread gets the next one, for all calls at once.
    """

    _credentials: Any = attrs.field(default=None, init=False, repr=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False, repr=False)

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:  # noqa: ARG002 - of the protocol
        """Return the token; see `Authorizer`."""
        async with self._lock:
            if self._credentials is None or not self._credentials.valid:
                self._credentials = await trio.to_thread.run_sync(
                    _google_credentials, self._credentials, abandon_on_cancel=True
                )
            return {"authorization": f"Bearer {self._credentials.token}"}


def _google_credentials(before: Any) -> Any:
    """Return credentials with a token that has not expired. Raises ProviderError."""
    # Google's library is imported on first use: it is an extra.
    import google.auth  # noqa: PLC0415
    from google.auth import exceptions  # noqa: PLC0415
    from google.auth.transport.requests import Request  # noqa: PLC0415

    try:
        credentials: Any = before if before is not None else google.auth.default(scopes=[SCOPE])[0]
        credentials.refresh(Request())
    except exceptions.DefaultCredentialsError as exc:
        raise _refused(
            "there are no default credentials of Google: run `gcloud auth application-default login`,"
            " or set GOOGLE_APPLICATION_CREDENTIALS to a file with the key of a service account",
            "unauthorized",
        ) from exc
    except exceptions.TransportError as exc:
        raise _refused("the server of Google's tokens cannot be reached", "connection") from exc
    except exceptions.GoogleAuthError as exc:
        raise _refused("Google gives no token for the default credentials", "unauthorized") from exc
    return credentials


def _refused(problem: str, cause: ProviderCause, provider: str = "vertex") -> ProviderError:
    details = {"provider": provider}
    return ProviderError(f"{provider}: {problem}", cause=cause, retryable=cause == "connection", details=details)


@define(eq=False)
class EntraToken:
    """A token of Microsoft Entra ID, by the default credentials of Azure in the environment of the process.

    It is kept until some minutes before it expires. A thread gets the next one, for all calls at once. Azure's library
    keeps tokens too, but not those of developers: each of these is the run of a program.

    Attributes:
        endpoint: the address, and the variable that might have a key.
    """

    endpoint: ModelEndpoint
    _credential: Any = attrs.field(default=None, init=False, repr=False)
    _token: Any = attrs.field(default=None, init=False, repr=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False, repr=False)

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:  # noqa: ARG002 - of the protocol
        """Return the token; see `Authorizer`."""
        async with self._lock:
            if self._token is None or self._token.expires_on - time.time() < ENTRA_MARGIN:
                self._credential, self._token = await trio.to_thread.run_sync(
                    _entra_token, self._credential, self.endpoint.vendor.key_variable, abandon_on_cancel=True
                )
            return {"authorization": f"Bearer {self._token.token}"}


def _entra_token(before: Any, key_variable: str) -> tuple[Any, Any]:
    """Return the credential and a token of it. Raises ProviderError without the library's words: they may quote."""
    # Azure's library is imported on first use: it is an extra.
    from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError  # noqa: PLC0415
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415

    try:
        # The library waits minutes for a server, and tries often: a call of a model gives up before, and is retried.
        credential: Any = before or DefaultAzureCredential(
            exclude_interactive_browser_credential=True,
            exclude_broker_credential=True,
            connection_timeout=10,
            read_timeout=20,
            retry_connect=1,
            retry_read=1,
        )
        return credential, credential.get_token_info(ENTRA_SCOPE)
    except (ServiceRequestError, ServiceResponseError) as exc:
        raise _refused("the server of Entra ID's tokens cannot be reached", "connection", "azure") from exc
    except AzureError as exc:
        found = _ENTRA_PROBLEM.search(str(exc))
        reason = f" ({found[0]})" if found else ""
        raise _refused(
            f"{key_variable} is not set, and the default credentials of Azure give no token of Entra ID{reason}:"
            " run `az login`, set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or give the machine"
            " a managed identity; --verbose logs what was tried",
            "unauthorized",
            "azure",
        ) from exc
    except (OSError, ValueError) as exc:  # of what the variables hold: a file that is not there, a tenant's name
        raise _refused(f"the default credentials of Azure cannot be read: {exc}", "unauthorized", "azure") from exc


@define(eq=False)
class AwsSignature:
    """A signature of each request with the credentials that AWS's library finds in the environment of the process.

    The body is read once more for its hash. Threads find the credentials, renew them and sign.

    Attributes:
        region: the region for which requests are signed.
    """

    region: str
    _session: Any = attrs.field(default=None, init=False, repr=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False, repr=False)

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:
        """Return the signature; see `Authorizer`."""
        digest = sha256()
        assert isinstance(request.stream, httpx.AsyncByteStream)  # noqa: S101 - for the type checker
        async for piece in request.stream:
            digest.update(piece)
        async with self._lock:
            if self._session is None:
                self._session = await trio.to_thread.run_sync(_aws_session, abandon_on_cancel=True)
        return await trio.to_thread.run_sync(self._signed, request, digest.hexdigest(), abandon_on_cancel=True)

    def _signed(self, request: httpx.Request, digest: str) -> Mapping[str, str]:
        # AWS's library is imported on first use: it is an extra.
        from botocore.auth import SigV4Auth  # type: ignore[import-untyped]  # noqa: PLC0415
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]  # noqa: PLC0415

        try:
            credentials = self._session.get_credentials()
            frozen_ones = credentials.get_frozen_credentials() if credentials is not None else None
        except BotoCoreError as exc:
            raise _refused(f"AWS gives no credentials: {exc}", "unauthorized", "bedrock") from exc
        if frozen_ones is None:
            raise _refused(
                "there are no credentials of AWS: run `aws configure` or `aws sso login`, or set AWS_PROFILE,"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_BEARER_TOKEN_BEDROCK",
                "unauthorized",
                "bedrock",
            )
        url = f"{request.url.scheme}://{request.headers['host']}{request.url.raw_path.decode('ascii')}"
        own = {"host": request.headers["host"], "x-amz-content-sha256": digest}
        signed = AWSRequest(method=request.method, url=url, headers=own)
        SigV4Auth(frozen_ones, "bedrock", self.region).add_auth(signed)
        return {name.lower(): value for name, value in signed.headers.items()}


def _aws_session() -> Any:
    from botocore.session import Session  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    return Session()


def authorizer(endpoint: ModelEndpoint) -> Authorizer | None:
    """Return the authorizer of a cloud; None for any other server: its dialect sends the key."""
    match endpoint.vendor.cloud:
        case "azure":
            return KeyHeader(endpoint, "api-key") if endpoint.key else EntraToken(endpoint)
        case "bedrock":
            return BearerKey(endpoint) if endpoint.key else AwsSignature(endpoint.region)
        case "vertex":
            return GoogleToken()
        case None:
            return None
