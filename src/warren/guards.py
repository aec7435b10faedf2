"""Guards that come with Warren, by the name that programs import them by; give them to `hooks=`."""

from warren.actors.guards.redaction import Redaction as Redaction
from warren.actors.guards.tool_rate import ToolRate as ToolRate
