"""The credentials of clouds, as headers of each request."""

from collections.abc import Mapping
from typing import Protocol

import httpx

from warren.transport.providers.settings import ModelEndpoint
from warren.values import frozen


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


def authorizer(endpoint: ModelEndpoint) -> Authorizer | None:
    """Return the authorizer of a cloud; None for any other server: its dialect sends the key."""
    return KeyHeader(endpoint, "api-key") if endpoint.vendor.cloud == "azure" else None
