"""Requests that are refused before or beside their method: an HTTP status and the error that its body shows."""

from http import HTTPStatus
from typing import Final

from warren.base.errors import CapacityExceededError, InvalidParamsError, WarrenError
from warren.conversation import codec

JSON: Final = "application/json"
SOON: Final = "1"
"""Seconds after which a client may ask again if all places are taken: nothing tells when one will be free."""
RETRY: Final = ("Retry-After", SOON)


class RefusedError(Exception):
    """The request gets an HTTP answer that says why it is refused.

    Attributes:
        status: the status of the answer.
        error: the body of the answer, as every surface shows it.
        headers: headers of the answer besides those of its body.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *headers: tuple[str, str],
        field: str = "$",
        error: WarrenError | None = None,
    ) -> None:
        """Refuse a request.

        Args:
            status: the status of the answer; with 503 the error is that the server has no room.
            text: the message of the error.
            headers: headers of the answer.
            field: the part of the request that is at fault, as in `$.headers.origin`.
            error: the error, if it is not one of the request's form.
        """
        super().__init__(text)
        full = status == HTTPStatus.SERVICE_UNAVAILABLE
        self.status = status
        made = CapacityExceededError(text, cause="max_connections") if full else InvalidParamsError(text, path=field)
        self.error: WarrenError = made if error is None else error
        self.headers = headers

    def answered_with(self, name: str, value: str) -> "RefusedError":
        """Return the same refusal with another value of one of its headers."""
        headers = [(each, value if each == name else before) for each, before in self.headers]
        return RefusedError(self.status, str(self), *headers, error=self.error)

    def answer(self, *, head_only: bool = False) -> bytes:
        """Return the whole HTTP response, or its head alone; the connection is to be closed after it."""
        body = codec.encode(self.error.body())
        fields = {"Content-Type": JSON, "Content-Length": str(len(body)), **dict(self.headers), "Connection": "close"}
        lines = [f"{name}: {value}" for name, value in fields.items()]
        head = "\r\n".join([f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", *lines, "", ""]).encode()
        return head if head_only else head + body
