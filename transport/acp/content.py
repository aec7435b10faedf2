"""The content blocks of a prompt, made into the text that the model reads and the files beside it. No I/O."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import quoteattr

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.conversation.attachments import File, name_in
from warren.transport.acp.params import read

KINDS: Final = "text, resource_link, resource, image, audio"
_ATTACHMENT: Final = re.compile(r"\$\.attachments(?:\[(\d+)\](?:\.(\w+))?)?")


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
    """A prompt: its text, and its files.

    Attributes:
        text: the text.
        files: the files.
        places: for each file the places of its fields in the prompt; that of the file itself is under the empty name.
    """

    text: str
    files: tuple[File, ...] = ()
    places: tuple[Mapping[str, str], ...] = ()

    def located(self, refusal: InvalidParamsError) -> InvalidParamsError:
        """Return a refusal of the runtime that names the block of the prompt in place of the file."""
        found = _ATTACHMENT.fullmatch(refusal.path)
        if found is None:
            return refusal
        path = "$.prompt"
        if found[1] is not None:
            place = self.places[int(found[1])]
            path = place.get(found[2] or "", place[""])
        problem = refusal.message.removeprefix(refusal.path).removeprefix(": ")
        return InvalidParamsError.at(path, problem, session_id=refusal.session_id)


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
    pieces, files, places = list[_Piece](), list[File](), list[Mapping[str, str]]()
    for index, block in enumerate(blocks):
        root = f"$.prompt[{index}]"
        found = _file(block, root)
        if found is None:
            pieces.append(_piece(block, root))
        else:
            file, place = found
            files.append(file)
            places.append(place)
    text = "".join(_joined(pieces))
    if not text.strip():
        raise InvalidParamsError.at("$.prompt", "has files alone, and needs a text" if files else "must not be empty")
    return AcpPrompt(text, tuple(files), tuple(places))


def _file(block: Mapping[str, Any], root: str) -> tuple[File, Mapping[str, str]] | None:
    """Return the file of a block, and the places of its fields; None for a block that is text."""
    kind, resource = block.get("type"), block.get("resource")
    if kind in ("image", "audio"):
        media = read(_Media, block, root)
        place = {"": root, "data": f"{root}.data", "media_type": f"{root}.mimeType"}
        return _made(media.data, media.mimeType, None, place)
    if kind == "resource" and isinstance(resource, Mapping) and "blob" in resource:
        root = f"{root}.resource"
        binary = read(_Binary, resource, root)
        fields = {"data": "blob", "media_type": "mimeType", "name": "uri"}
        place = {"": root} | {field: f"{root}.{name}" for field, name in fields.items()}
        return _made(binary.blob, binary.mimeType, name_in(binary.uri), place)
    return None


def _made(
    data: bytes, media_type: str | None, name: str | None, place: Mapping[str, str]
) -> tuple[File, Mapping[str, str]]:
    """Return a file and its places; a blank type or name counts as none. Raises InvalidParamsError."""
    try:
        return File(data, media_type=_said(media_type), name=_said(name)), place
    except FieldValueError as exc:
        raise InvalidParamsError.at(place.get(exc.field, place[""]), exc.problem) from exc


def _said(text: str | None) -> str | None:
    return text if text and text.strip() else None


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
    raise InvalidParamsError.at(f"{root}.type", f"must be one of {KINDS}")


def _embedded(resource: Mapping[str, Any], root: str) -> str:
    contents = read(_Contents, resource, root)
    return f"<resource uri={quoteattr(contents.uri)}>\n{contents.text}\n</resource>"
