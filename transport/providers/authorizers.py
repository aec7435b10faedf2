"""The credentials of clouds, as headers of each request."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs
import httpx
import trio

from warren.errors import ProviderCause, ProviderError
from warren.transport.providers.settings import ModelEndpoint
from warren.values import define, frozen

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


class Authorizer(Protocol):
    """The source of the headers that authorize requests to a cloud."""

    async def headers(self, request: httpx.Request) -> Mapping[str, str]:
        """Return the headers that authorize a request, which has all of its other headers.

        Raises ProviderError if there are no credentials.
        """
        ...


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
        return {self.header: self.endpoint.key} if self.endpoint.key else {}


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


def _refused(problem: str, cause: ProviderCause) -> ProviderError:
    details = {"provider": "vertex"}
    return ProviderError(f"vertex: {problem}", cause=cause, retryable=cause == "connection", details=details)


def authorizer(endpoint: ModelEndpoint) -> Authorizer | None:
    """Return the authorizer of a cloud; None for any other server: its dialect sends the key."""
    match endpoint.vendor.cloud:
        case "azure":
            return KeyHeader(endpoint, "api-key")
        case "vertex":
            return GoogleToken()
        case None:
            return None
