"""The rules that servers have for the tools of a request, by protocol. No I/O.

A server refuses the whole request for one tool that breaks a rule. So each tool is brought into the form that its
protocol takes (`tool_schemas.py`), or left out alone.
"""

import re
import sys
from collections.abc import Sequence
from typing import Final

import attrs

from warren.base.values import frozen
from warren.models.tools import marked_name

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
_BEGIN: Final = re.compile(r"[A-Za-z_]")


@frozen
class Source:
    """The place where a rule was found.

    Attributes:
        rule: the rule, in words.
        place: the page, or the thread with the server's own refusal.
        date: the day of the page or of the refusal.
    """

    rule: str
    place: str
    date: str


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
        sources: the places where the rules were found.
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
    sources: Sequence[Source] = attrs.field(default=(), kw_only=True)

    def name(self, own: str) -> str:
        """Return the name of a tool in a form that the server takes."""
        return _fitting(own, self.names, self.longest_name)

    def member(self, own: str) -> str:
        """Return the name of a schema's member in a form that the server takes."""
        return own if self.members is None else _fitting(own, self.members, self.longest_member)


_OBJECT: Final = "the schema is an object's, and has neither `anyOf`, `oneOf`, `allOf`, `enum`, `const` nor `not`"
OPENAI: Final = ToolRules(
    re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    most=128,
    longest_description=1024,
    open_objects=False,
    sources=(
        Source("a name has 1 to 64 letters, digits, `_` and `-`", "openai/openai-openapi, `FunctionObject`", "2025"),
        Source("at most 128 tools", "openai/openai-openapi, `CreateChatCompletionRequest`", "2025"),
        Source("a description has at most 1,024 characters", "getsentry/sentry-mcp issue 106", "2025-04-25"),
        Source(_OBJECT, "goruck/home-generative-agent pull request 545", "2026-08-12"),
        Source("an object has `properties`", "containers/kubernetes-mcp-server issue 340", "2025-09-25"),
        Source("an array has `items`", "sigoden/aichat pull request 1049", "2024-12-11"),
    ),
)
"""The rules of OpenAI's chat completions. Servers that resemble it take what keeps them, and any number of tools."""
RESPONSES: Final = attrs.evolve(
    OPENAI,
    longest_description=None,
    sources=tuple(each for each in OPENAI.sources if "description" not in each.rule),
)
"""The rules of OpenAI's responses, Azure's among them."""
MANY: Final = sys.maxsize
"""The number of tools that servers of other makers get: one that takes fewer says so."""
ANTHROPIC: Final = ToolRules(
    re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    members=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
    sources=(
        Source(
            "a name has 1 to 64 letters, digits, `_` and `-`; some servers take 128",
            "Anthropic's page on tool use; openclaw/openclaw issue 12892 for Bedrock",
            "2026-02-09",
        ),
        Source(
            "the name of a member has 1 to 64 letters, digits, `_`, `.` and `-`",
            "anthropics/claude-code issue 79418",
            "2026-08-17",
        ),
        Source(
            "the schema has neither `anyOf`, `oneOf` nor `allOf` at its top",
            "marianfoo/mcp-sap-docs pull request 51",
            "2026-05-21",
        ),
        Source("the schema has the type `object`", "lidge-jun/opencodex issue 75", "2026-07-09"),
        Source("the schema is one of draft 2020-12", "anthropics/claude-code issue 86665", "2026-08-14"),
    ),
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
    sources=(
        Source(
            "a name begins with a letter or `_`, and has at most 64 letters, digits, `_`, `.`, `:` and `-`",
            "kaitranntt/ccs issue 25",
            "2025-11-30",
        ),
        Source("at most 512 declarations", "google-gemini/gemini-cli issue 19083", "2026-02-14"),
        Source(
            "the keywords are those of `responseJsonSchema`; nothing else stands beside `$ref`, and cycles are refused"
            " in required members, so references are replaced by what they refer to",
            "googleapis of pub.dev, `GenerationConfig`; google-gemini/gemini-cli issues 4758 and 13326",
            "2025-11-18",
        ),
        Source("an `enum` has texts and numbers", "googleapis of pub.dev, as above", "2025-11"),
        Source("a tool without arguments has no schema", "Vertex AI reference, `FunctionDeclaration`", "2025-04-29"),
    ),
)
"""The rules of Google's protocol, whose declarations have `parametersJsonSchema`."""

BY_PROTOCOL: Final = {
    "OpenAI's chat completions": OPENAI,
    "OpenAI's responses": RESPONSES,
    "Anthropic's messages": ANTHROPIC,
    "Google's `streamGenerateContent`": GEMINI,
}
