"""The schemas of a tool's arguments and of its result, each a document of its own."""

from typing import Final

from warren.transport.mcp.tools import McpTool
from warren.transport.rpc.error_schema import error_schema
from warren.transport.rpc.schemas import Schema, Schemas

ERROR: Final = "Error"


def input_schema(tool: McpTool) -> Schema:
    """Return the schema of a tool's arguments, with what each one means."""
    schema = _document(tool.method.params, strict=True)
    schema.pop("description")
    for name, text in tool.arguments.items():
        schema["properties"][name]["description"] = text
    return schema


def result_schema(cls: type) -> Schema:
    """Return the schema of a result, which may be an error as well.

    The official client of TypeScript holds the structured content of errors against it too, and where it does not fit
    shows that instead of the error. What only one of both has is not required, for the same reason.
    """
    schema = _document(cls, strict=False)
    good = {"required": schema.pop("required", [])}
    definitions = {**schema.pop("$defs", {}), ERROR: error_schema()}
    return {**schema, "anyOf": [good, {"$ref": f"#/$defs/{ERROR}"}], "$defs": definitions}


def _document(cls: type, *, strict: bool) -> Schema:
    schemas = Schemas(strict=strict)
    schema = schemas.of_class(cls)
    return schema | ({"$defs": schemas.definitions} if schemas.definitions else {})
