"""The table of routes: each is a method of the table of methods, at a path."""

from typing import Any, Final, Literal

from warren.base.values import frozen
from warren.transport.rpc.methods import METHODS, Method

Verb = Literal["GET", "POST", "PATCH", "DELETE"]
WITH_BODY: Final = ("POST", "PATCH")


@frozen
class RestRoute:
    """One route.

    Attributes:
        verb: the HTTP method.
        path: the path, in the form of Starlette and OpenAPI; names in braces are parameters of the method.
        method: the method. Parameters that are not in the path come in the query of GET, in the body of POST
            and PATCH.
        status: the status of a good answer.
        failed: the status of an answer whose own `status` is `failed`, for clients that look at the status alone.
        streams: whether the answer is a stream of events rather than the method's result.
        content: whether the answer is the file of the method's result, as it is.
        operation: the name in the OpenAPI document, if the method has another route too.
    """

    verb: Verb
    path: str
    method: Method[Any, Any]
    status: int = 200
    failed: int | None = None
    streams: bool = False
    content: bool = False
    operation: str | None = None


SESSION: Final = "/sessions/{session_id}"
TRIGGER_PATH: Final = "/triggers/{trigger_id}"
"""Where signed calls go too, which are in no table: see `warren.transport.rest.triggers`."""
ROUTES: Final = (
    RestRoute("POST", "/sessions", METHODS["session/create"], 201),
    RestRoute("GET", "/sessions", METHODS["session/list"]),
    RestRoute("GET", SESSION, METHODS["session/read"]),
    RestRoute("DELETE", SESSION, METHODS["session/delete"]),
    RestRoute("PATCH", SESSION, METHODS["session/label"], operation="session_update"),
    RestRoute("POST", f"{SESSION}/messages", METHODS["turn/start"]),
    RestRoute("GET", f"{SESSION}/turn", METHODS["turn/wait"]),
    RestRoute("POST", f"{SESSION}/interrupt", METHODS["turn/interrupt"]),
    RestRoute("POST", f"{SESSION}/archive", METHODS["session/archive"]),
    RestRoute("POST", f"{SESSION}/compact", METHODS["session/compact"]),
    RestRoute("POST", f"{SESSION}/fork", METHODS["session/fork"], 201),
    RestRoute("POST", f"{SESSION}/children", METHODS["session/delegate"], 201),
    RestRoute("POST", f"{SESSION}/context", METHODS["session/inject_context"]),
    RestRoute("GET", f"{SESSION}/context", METHODS["session/context"]),
    RestRoute("GET", f"{SESSION}/attachments/{{sha256}}", METHODS["session/attachment"]),
    RestRoute(
        "GET",
        f"{SESSION}/attachments/{{sha256}}/content",
        METHODS["session/attachment"],
        content=True,
        operation="session_attachment_content",
    ),
    RestRoute("GET", f"{SESSION}/inputs", METHODS["session/inputs"]),
    RestRoute("DELETE", f"{SESSION}/inputs/{{input_id}}", METHODS["session/withdraw"]),
    RestRoute("POST", f"{SESSION}/approvals/{{call_id}}", METHODS["tool/approve"]),
    RestRoute("POST", "/complete", METHODS["tool/complete"]),
    RestRoute("GET", "/approvals", METHODS["approvals/list"]),
    RestRoute("GET", "/agents", METHODS["agents/list"]),
    RestRoute("GET", "/agents/{name}", METHODS["agents/get"]),
    RestRoute("POST", "/schedules", METHODS["schedule/create"]),
    RestRoute("GET", "/schedules", METHODS["schedule/list"]),
    RestRoute("PATCH", "/schedules/{schedule_id}", METHODS["schedule/change"]),
    RestRoute("DELETE", "/schedules/{schedule_id}", METHODS["schedule/delete"]),
    RestRoute("POST", "/triggers", METHODS["trigger/create"]),
    RestRoute("GET", "/triggers", METHODS["trigger/list"]),
    RestRoute("PATCH", TRIGGER_PATH, METHODS["trigger/change"]),
    RestRoute("DELETE", TRIGGER_PATH, METHODS["trigger/delete"]),
    RestRoute("POST", "/webhooks", METHODS["webhook/create"]),
    RestRoute("GET", "/webhooks", METHODS["webhook/list"]),
    RestRoute("PATCH", "/webhooks/{webhook_id}", METHODS["webhook/change"]),
    RestRoute("DELETE", "/webhooks/{webhook_id}", METHODS["webhook/delete"]),
    RestRoute("GET", "/webhooks/{webhook_id}/deliveries", METHODS["delivery/list"]),
    RestRoute("POST", "/webhooks/{webhook_id}/resend", METHODS["delivery/resend"]),
    RestRoute("GET", f"{SESSION}/peers", METHODS["peer/list"]),
    RestRoute("POST", f"{SESSION}/peers/{{to}}/messages", METHODS["peer/send"]),
    RestRoute("PATCH", f"{SESSION}/labels", METHODS["session/label"]),
    RestRoute("POST", f"{SESSION}/resume", METHODS["session/resume"]),
    RestRoute("GET", f"{SESSION}/history", METHODS["session/history"]),
    RestRoute("GET", f"{SESSION}/events", METHODS["session/subscribe"], streams=True),
    RestRoute("GET", "/changes", METHODS["session/watch"], streams=True),
    RestRoute("POST", "/memory/search", METHODS["memory/search"]),
    RestRoute("POST", "/memory/forget", METHODS["memory/forget"]),
    RestRoute("GET", "/audit", METHODS["audit/list"]),
    RestRoute("GET", "/usage", METHODS["usage/get"]),
    RestRoute("GET", "/nodes", METHODS["nodes/list"]),
    RestRoute("POST", "/nodes/{name}/drain", METHODS["nodes/drain"]),
    RestRoute("POST", "/store/check", METHODS["store/check"]),
    RestRoute("GET", "/tenants", METHODS["tenants/list"]),
    RestRoute("GET", "/capabilities", METHODS["capabilities/get"]),
    RestRoute("GET", "/config", METHODS["config/get"]),
    RestRoute("GET", "/health", METHODS["health"], failed=503),
    RestRoute("GET", "/metrics.json", METHODS["metrics/get"]),
    RestRoute("GET", "/metrics/history", METHODS["metrics/history"]),
)
