"""The content blocks of a prompt, made into the text that the model reads. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import quoteattr

from warren.errors import InvalidParamsError
from warren.transport.acp.params import read
from warren.values import frozen

KINDS: Final = "text, resource_link, resource"


@frozen
class _Text:
    text: str


@frozen
class _Link:
    uri: str
    name: str


@frozen
class _Embedded:
    resource: Mapping[str, Any]


@frozen
class _Contents:
    uri: str
    text: str


@frozen
class _Piece:
    """A part of the text. If `own_lines` is true, it shares no line with its neighbours."""

    text: str
    own_lines: bool


def prompt_of(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return the user's prompt as one text.

    A link stays at its place in the sentence, as `[name](uri)`. The text of an embedded resource is between
    `<resource uri="…">` and `</resource>`, on lines of its own.

    Raises:
        InvalidParamsError: if a block is bad, with the path of the block, or if the prompt is empty.
    """
    pieces = [_piece(block, f"$.prompt[{index}]") for index, block in enumerate(blocks)]
    text = "".join(_joined(pieces))
    if not text.strip():
        raise InvalidParamsError("$.prompt: must not be empty", path="$.prompt")
    return text


def _joined(pieces: Sequence[_Piece]) -> Sequence[str]:
    parts: list[str] = []
    for index, piece in enumerate(pieces):
        if index and (piece.own_lines or pieces[index - 1].own_lines) and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(piece.text)
    return parts


def _piece(block: Mapping[str, Any], root: str) -> _Piece:
    match block.get("type"):
        case "text":
            return _Piece(read(_Text, block, root).text, own_lines=False)
        case "resource_link":
            link = read(_Link, block, root)
            return _Piece(f"[{link.name}]({link.uri})", own_lines=False)
        case "resource":
            return _Piece(_embedded(read(_Embedded, block, root).resource, f"{root}.resource"), own_lines=True)
    raise InvalidParamsError(f"{root}.type: must be one of {KINDS}", path=f"{root}.type")


def _embedded(resource: Mapping[str, Any], root: str) -> str:
    if "blob" in resource:
        raise InvalidParamsError(f"{root}.blob: only text can be embedded", path=f"{root}.blob")
    contents = read(_Contents, resource, root)
    return f"<resource uri={quoteattr(contents.uri)}>\n{contents.text}\n</resource>"
