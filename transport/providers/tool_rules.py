"""The rules that servers have for the tools of a request, by protocol. No I/O.

A server refuses the whole request for one tool that breaks a rule. So each tool is brought into the form that its
protocol takes (`tool_schemas.py`), or left out alone. `docs/tools.md` has the place where each rule was found.
"""

import re
import sys
from typing import Final

import attrs

from warren.base.values import frozen
from warren.models.tools import marked_name

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
_BEGIN: Final = re.compile(r"[A-Za-z_]")


def _fitting(own: str, good: "re.Pattern[str]", longest: int) -> str:
    """Return a name if it is good, or else a good one that no other name gets: the same for each call and its tool."""
    if good.fullmatch(own):
        return own
    plain = _UNFIT.sub("_", own)
    return marked_name(plain if _BEGIN.match(plain) else f"_{plain}", own, longest)


@frozen
class ToolRules:
    """The rules of one protocol.

    Attributes:
        names: the pattern of the names of tools.
        longest_name: characters that a name may have.
        members: the pattern of the names of a schema's members; None takes any name.
        longest_member: characters that the name of a member may have.
        most: tools that a request may have.
        longest_description: characters that the description of a tool may have; None for any number.
        open_objects: whether an object within the arguments may have no `properties`.
        bare_schemas: whether the schema of a tool without arguments is sent.
        keywords: the keywords of JSON schema that are read; None for those of draft 2020-12, `$ref` among them.
    """

    names: "re.Pattern[str]"
    longest_name: int = 64
    members: "re.Pattern[str] | None" = None
    longest_member: int = 64
    most: int = sys.maxsize
    longest_description: int | None = None
    open_objects: bool = True
    bare_schemas: bool = True
    keywords: frozenset[str] | None = None

    def name(self, own: str) -> str:
        """Return the name of a tool in a form that the server takes."""
        return _fitting(own, self.names, self.longest_name)

    def member(self, own: str) -> str:
        """Return the name of a schema's member in a form that the server takes."""
        return own if self.members is None else _fitting(own, self.members, self.longest_member)


OPENAI: Final = ToolRules(
    re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    most=128,
    longest_description=1024,
    open_objects=False,
)
"""The rules of OpenAI's chat completions. Servers that resemble it take what keeps them, and any number of tools."""
RESPONSES: Final = attrs.evolve(OPENAI, longest_description=None)
"""The rules of OpenAI's responses, Azure's among them."""
MANY: Final = sys.maxsize
"""The number of tools that servers of other makers get: one that takes fewer says so."""
ANTHROPIC: Final = ToolRules(
    re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    members=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
)
"""The rules of Anthropic's messages, also on Bedrock and Vertex AI."""
GEMINI: Final = ToolRules(
    re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
    most=512,
    bare_schemas=False,
    keywords=frozenset(
        {"type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems", "minimum"}
        | {"maximum", "anyOf", "properties", "additionalProperties", "required"}
    ),
)
"""The rules of Google's protocol, whose declarations have `parametersJsonSchema`."""
