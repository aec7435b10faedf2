"""The content blocks of a prompt, made into the text that the model reads and the files beside it. No I/O."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

from warren.attachments import MAX_NAME, File
from warren.errors import InvalidParamsError
from warren.transport.acp.params import read
from warren.values import frozen

KINDS: Final = "text, resource_link, resource, image, audio"


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
class _Binary:
    uri: str
    blob: bytes
    mimeType: str | None = None  # noqa: N815 - the protocol's own name


@frozen
class _Media:
    data: bytes
    mimeType: str  # noqa: N815 - as above


@frozen
class AcpPrompt:
    """A prompt: its text, and its files."""

    text: str
    files: tuple[File, ...] = ()


@frozen
class _Piece:
    """A part of the text. If `own_lines` is true, it shares no line with its neighbours."""

    text: str
    own_lines: bool


def prompt_of(blocks: Sequence[Mapping[str, Any]]) -> AcpPrompt:
    """Return the user's prompt as one text, and the images, sounds and binary resources as files.

    A link stays at its place in the sentence, as `[name](uri)`. The text of an embedded resource is between
    `<resource uri="…">` and `</resource>`, on lines of its own.

    Raises:
        InvalidParamsError: if a block is bad, with the path of the block, or if the prompt has no text.
    """
    pieces, files = list[_Piece](), list[File]()
    for index, block in enumerate(blocks):
        root = f"$.prompt[{index}]"
        found = _file(block, root)
        if found is None:
            pieces.append(_piece(block, root))
        else:
            files.append(found)
    text = "".join(_joined(pieces))
    if not text.strip():
        problem = "has files alone, and needs a text" if files else "must not be empty"
        raise InvalidParamsError(f"$.prompt: {problem}", path="$.prompt")
    return AcpPrompt(text, tuple(files))


def _file(block: Mapping[str, Any], root: str) -> File | None:
    """Return the file of a block; None for a block that is text."""
    kind, resource = block.get("type"), block.get("resource")
    if kind in ("image", "audio"):
        media = read(_Media, block, root)
        return File(media.data, media_type=media.mimeType)
    if kind == "resource" and isinstance(resource, Mapping) and "blob" in resource:
        binary = read(_Binary, resource, f"{root}.resource")
        name = PurePosixPath(unquote(urlsplit(binary.uri).path)).name[-MAX_NAME:]
        return File(binary.blob, media_type=binary.mimeType, name=name or None)
    return None


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
    contents = read(_Contents, resource, root)
    return f"<resource uri={quoteattr(contents.uri)}>\n{contents.text}\n</resource>"
