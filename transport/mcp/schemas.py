"""The schemas of the arguments and the result of an MCP tool, each a document of its own."""

from typing import Final

from warren.transport.mcp.tools import McpTool
from warren.transport.rpc.schemas import Schema, Schemas, error_schema

ERROR: Final = "Error"


def input_schema(tool: McpTool) -> Schema:
    """Return the schema of a tool's arguments, with a sentence about each."""
    schema = _document(tool.method.params, strict=True)
    schema.pop("description")
    return schema


def result_schema(cls: type) -> Schema:
    """Return the schema of a result, or of an error.

    The official client of TypeScript checks the structured content of errors against this schema too. If an error does
    not fit, the client shows the mismatch instead of the error. So a field is required in one of the two forms only.
    """
    schema = _document(cls, strict=False)
    good = {"required": schema.pop("required", [])}
    definitions = {**schema.pop("$defs", {}), ERROR: error_schema()}
    return {**schema, "anyOf": [good, {"$ref": f"#/$defs/{ERROR}"}], "$defs": definitions}


def _document(cls: type, *, strict: bool) -> Schema:
    schemas = Schemas(strict=strict)
    schema = schemas.of_class(cls)
    return schema | ({"$defs": schemas.definitions} if schemas.definitions else {})
