"""The tasks of revision 2025-11-25: calls that go on at a server, which is asked for their results."""

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types

from warren.base.values import frozen

IMMEDIATE: Final = "io.modelcontextprotocol/model-immediate-response"
RELATED: Final = "io.modelcontextprotocol/related-task"
_TASK: Final = "warren/task"
ENDED: Final = frozenset({"completed", "failed", "cancelled"})
"""The states that a task does not leave."""
SHORTEST: Final = 0.05
LONGEST: Final = 3600.0
"""Seconds between two looks at a task, whatever the server asks for."""
USUAL: Final = 2.0
"""Seconds between two looks if the server asks for none."""
MAX_ID: Final = 1_000
"""Characters of the id of a task."""


@frozen
class TaskHandle:
    """The way to a task, which the store keeps.

    Attributes:
        task_id: its id at the server.
        poll: seconds between two looks.
    """

    task_id: str
    poll: float

    @classmethod
    def of(cls, handle: Mapping[str, Any]) -> "TaskHandle":
        """Return the value of a stored handle."""
        return cls(str(handle["task_id"]), float(handle["poll"]))

    @property
    def stored(self) -> Mapping[str, Any]:
        """The value as JSON."""
        return {"task_id": self.task_id, "poll": self.poll}


def with_task(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of a call with the task that the server has created for it; None if it has created none."""
    task = result.get("task")
    if "content" in result or not isinstance(task, dict) or not isinstance(task.get("taskId"), str):
        return None
    meta = result.get("_meta")
    return {"content": [], "_meta": {**(meta if isinstance(meta, dict) else {}), _TASK: task}}


def task_of(result: types.CallToolResult) -> types.Task | None:
    """Return the task that a server has created for a call; None if the result is that of the call.

    Raises ValueError if the task is none.
    """
    task = (result.meta or {}).get(_TASK)
    if task is None:
        return None
    found = types.Task.model_validate(task, by_name=False)
    if not 0 < len(found.task_id) <= MAX_ID:
        raise ValueError(f"the id of its task has {len(found.task_id)} characters, and may have 1 to {MAX_ID}")
    return found


def told_of(result: types.CallToolResult) -> str | None:
    """Return what the server wants the model to be told, which then goes on without the result; None if nothing."""
    told = (result.meta or {}).get(IMMEDIATE)
    return told if isinstance(told, str) and told.strip() else None


def related_to(params: types.RequestParams) -> str | None:
    """Return the id of the task that a request of the server belongs to; None if it names none."""
    related = (params.meta or {}).get(RELATED)
    task_id = related.get("taskId") if isinstance(related, dict) else None
    return task_id if isinstance(task_id, str) else None


def poll_of(task: types.Task, before: float = USUAL) -> float:
    """Return the seconds until the next look at a task."""
    asked = before if task.poll_interval is None else task.poll_interval / 1000
    return min(max(asked, SHORTEST), LONGEST)


def support_of(tool: types.Tool, capabilities: types.ServerCapabilities, *, wanted: bool) -> bool:
    """Tell whether calls of a tool are to run as tasks; `wanted` if they are to if they need not."""
    requests = None if capabilities.tasks is None else capabilities.tasks.requests
    if requests is None or requests.tools is None or requests.tools.call is None or tool.execution is None:
        return False
    support = tool.execution.task_support
    return support == "required" or (support == "optional" and wanted)
