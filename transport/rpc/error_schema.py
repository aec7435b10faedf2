"""The JSON schema of an error's body, which is the same on every surface."""

from typing import Any

from warren.base.errors import ErrorCode


def error_schema() -> dict[str, Any]:
    """Return the schema."""
    return {
        "type": "object",
        "description": "Why a request failed; `code` is for programs, `message` for people.",
        "required": ["code", "message", "retryable"],
        "properties": {
            "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
            "message": {"type": "string"},
            "retryable": {"type": "boolean"},
            "session_id": {"type": "string"},
            "details": {"type": "object"},
        },
    }
