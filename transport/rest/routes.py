"""The table of routes: each is a method of the table of methods, at a path."""

from typing import Any, Final, Literal

from warren.transport.rpc.methods import METHODS, Method
from warren.values import frozen

Verb = Literal["GET", "POST", "PATCH", "DELETE"]
WITH_BODY: Final = ("POST", "PATCH")


@frozen
class Row:
    """One route.

    Attributes:
        verb: the HTTP method.
        path: the path, in the form of Starlette and OpenAPI; names in braces are parameters of the method.
        method: the method. Parameters that are not in the path come in the query of GET, in the body of POST
            and PATCH.
        status: the status of a good answer.
        failed: the status of an answer whose own `status` is `failed`, for clients that look at the status alone.
        streams: whether the answer is a stream of events rather than the method's result.
        operation: the name in the OpenAPI document, if the method has another route too.
    """

    verb: Verb
    path: str
    method: Method[Any, Any]
    status: int = 200
    failed: int | None = None
    streams: bool = False
    operation: str | None = None


SESSION: Final = "/sessions/{session_id}"
ROUTES: Final = (
    Row("POST", "/sessions", METHODS["session/create"], 201),
    Row("GET", "/sessions", METHODS["session/list"]),
    Row("GET", SESSION, METHODS["session/read"]),
    Row("DELETE", SESSION, METHODS["session/delete"]),
    Row("PATCH", SESSION, METHODS["session/label"], operation="session_update"),
    Row("POST", f"{SESSION}/messages", METHODS["turn/start"]),
    Row("POST", f"{SESSION}/interrupt", METHODS["turn/interrupt"]),
    Row("POST", f"{SESSION}/archive", METHODS["session/archive"]),
    Row("POST", f"{SESSION}/compact", METHODS["session/compact"]),
    Row("POST", f"{SESSION}/fork", METHODS["session/fork"], 201),
    Row("POST", f"{SESSION}/context", METHODS["session/inject_context"]),
    Row("GET", f"{SESSION}/inputs", METHODS["session/inputs"]),
    Row("DELETE", f"{SESSION}/inputs/{{input_id}}", METHODS["session/withdraw"]),
    Row("POST", f"{SESSION}/approvals/{{call_id}}", METHODS["tool/approve"]),
    Row("GET", f"{SESSION}/peers", METHODS["peer/list"]),
    Row("POST", f"{SESSION}/peers/{{to}}/messages", METHODS["peer/send"]),
    Row("PATCH", f"{SESSION}/labels", METHODS["session/label"]),
    Row("POST", f"{SESSION}/resume", METHODS["session/resume"]),
    Row("GET", f"{SESSION}/history", METHODS["session/history"]),
    Row("GET", f"{SESSION}/events", METHODS["session/subscribe"], streams=True),
    Row("POST", "/memory/search", METHODS["memory/search"]),
    Row("GET", "/capabilities", METHODS["capabilities/get"]),
    Row("GET", "/config", METHODS["config/get"]),
    Row("GET", "/health", METHODS["health"], failed=503),
)
