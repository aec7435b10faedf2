"""Tools of programs, by the name that programs import them by."""

from warren.models.tools import Tool as Tool
from warren.models.tools import ToolArgumentsError as ToolArgumentsError
from warren.models.tools import ToolContext as ToolContext
from warren.models.tools import ToolError as ToolError
from warren.models.tools import ToolOutput as ToolOutput
from warren.models.tools import ToolSpec as ToolSpec
from warren.models.tools import current_call as current_call
from warren.models.tools import tool as tool
