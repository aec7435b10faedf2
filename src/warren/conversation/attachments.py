"""Images, PDFs, sounds and texts that go with a message: the reference in the conversation, and the bytes beside it.

The bytes are stored once for each tenant, under their SHA-256. Messages, inputs and events have the reference alone.
"""

import mimetypes
import re
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Mapping
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, get_args
from urllib.parse import unquote, urlsplit

import attrs

from warren.base.fields import LEFT_OUT, AtMost, FieldValueError, is_text, not_blank, optional
from warren.base.values import frozen, value

Kind = Literal["image", "pdf", "audio", "text"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ANY_KIND: Final = frozenset(KINDS)
MAX_ATTACHMENTS: Final = 20
"""Attachments of one message."""
MAX_TEXT: Final = 1024 * 1024
"""Bytes of an attached text, which a request to a model has as words."""
MAX_URL: Final = 2_000
MAX_NAME: Final = 200
TOKENS: Final = 1_500
"""Tokens for which an attachment counts in estimates that is no text; providers count by pixels, pages and seconds."""
PDF: Final = "application/pdf"
# Patterns that few programs use are texts: `re` compiles them at their first use, and keeps them.
_MAGIC: Final = (
    (rb"\x89PNG\r\n\x1a\n", "image/png"),
    (rb"\xff\xd8\xff", "image/jpeg"),
    (rb"GIF8[79]a", "image/gif"),
    (rb"RIFF....WEBP", "image/webp"),
    (rb"%PDF-", PDF),
    (rb"RIFF....WAVE", "audio/wav"),
    (rb"ID3|\xff[\xfb\xf3\xf2]", "audio/mpeg"),
)
_ALIASES: Final[Mapping[str, str]] = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
}
_BINARY: Final[Mapping[str, Kind]] = {
    "image/png": "image",
    "image/jpeg": "image",
    "image/gif": "image",
    "image/webp": "image",
    PDF: "pdf",
    "audio/wav": "audio",
    "audio/mpeg": "audio",
}
_TEXTUAL: Final = r"text/[a-z0-9.+-]+|application/([a-z0-9.+-]+\+)?(json|xml|yaml|toml|javascript|sql|x-sh)"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
_ADDRESS: Final = r"https://[^\s\"\\]+"
_UNTYPED: Final = "application/octet-stream"


@frozen
class Attachment:
    """A file of a message, by reference.

    Attributes:
        media_type: the type of its bytes, such as `image/png`.
        sha256: the SHA-256 of its bytes in hexadecimal digits, under which they are stored; None for a URL.
        size: bytes.
        name: the name of the file, for people and models.
        url: the address from which the provider fetches it; None for one that is stored.
        not_kept: why the file at the URL was not fetched and stored, although the host fetches files of prompts.
    """

    media_type: str
    sha256: str | None = None
    size: int = 0
    name: str | None = None
    url: str | None = None
    not_kept: str | None = attrs.field(default=None, metadata=LEFT_OUT)

    @property
    def kind(self) -> Kind:
        """The kind, by which models take it or not."""
        return _BINARY.get(self.media_type, "text")

    @property
    def label(self) -> str:
        """The kind and the name, for people and for models that cannot take it."""
        return f"{self.kind} {self.name or self.url or self.media_type}"


@frozen
class File:
    """A file to attach to a message: its bytes, its address, or the hash of one that the session has already.

    Attributes:
        data: its bytes; JSON has them in base64.
        url: its address, `https://…`. It is fetched and stored if the host allows that (see
            `warren.ToolsConfig`); otherwise the address goes to the provider, which fetches it.
        sha256: the hash of an attachment that the session has already.
        media_type: its type, such as `image/png`; for bytes it is found out if it is missing, and has to be right if
            not. A URL needs it.
        name: its name, for people and models.
    """

    data: bytes | None = attrs.field(default=None, repr=False)
    url: str | None = attrs.field(default=None, validator=optional(is_text, AtMost(MAX_URL)), kw_only=True)
    sha256: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)
    media_type: str | None = attrs.field(default=None, validator=optional(is_text, not_blank), kw_only=True)
    name: str | None = attrs.field(default=None, validator=optional(is_text, not_blank, AtMost(MAX_NAME)), kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse a file that is given in no way or in several. Raises FieldValueError."""
        ways = [name for name in ("data", "url", "sha256") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise FieldValueError(ways[1] if ways else "data", "has to be given alone: one of data, url and sha256")
        if self.data is not None and not isinstance(self.data, bytes):
            raise FieldValueError("data", "must be bytes")
        if self.sha256 is not None and not SHA256.fullmatch(self.sha256):
            raise FieldValueError("sha256", "must be 64 hexadecimal digits in lower case")
        if self.url is not None:
            if not re.fullmatch(_ADDRESS, self.url):
                raise FieldValueError("url", "must be an address that begins with https://")
            if self.media_type is None:
                raise FieldValueError("media_type", "is required for a URL")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "File":
        """Return a file of this machine, with its name. Raises OSError."""
        return cls(Path(path).read_bytes(), name=Path(path).name[-MAX_NAME:])


@frozen
class AttachmentContent:
    """An attachment of a session, with its bytes.

    Attributes:
        attachment: the reference.
        data: the bytes; JSON has them in base64.
    """

    attachment: Attachment
    data: bytes = attrs.field(repr=False)


@value
class Blob:
    """The bytes of an attachment, to be stored.

    Attributes:
        attachment: the reference.
        data: the bytes.
    """

    attachment: Attachment
    data: bytes = attrs.field(repr=False)


ReadFile = Callable[[Attachment, int, int], Awaitable[bytes]]
"""Returns some bytes of an attachment: those of a number from a place on. Raises StoreError if they are gone."""


def name_in(url: str) -> str | None:
    """Return the last part of an address as the name of a file; None if it has none, or is no address at all."""
    try:
        name = PurePosixPath(unquote(urlsplit(url).path)).name.strip()[-MAX_NAME:].strip()
    except ValueError:
        return None
    return name if name and name.isprintable() else None


def are_files(_instance: object, attribute: "attrs.Attribute[Any]", files: Any) -> None:
    """Refuse values other than a few files."""
    if len(files) > MAX_ATTACHMENTS:
        raise FieldValueError(attribute.name, f"must have at most {MAX_ATTACHMENTS} files")
    for index, each in enumerate(files):
        if not isinstance(each, File):
            raise FieldValueError(f"{attribute.name}[{index}]", "must be a File")


def reference_of(file: File, most: int) -> Attachment:
    """Return the reference of a file that is given by its bytes or its URL.

    Args:
        file: the file.
        most: bytes that it may have.

    Raises FieldValueError that names a bad field of it.
    """
    if file.data is None:
        claimed = None if file.media_type is None else _plain(file.media_type)
        media_type = claimed or _UNTYPED
        _check_known(media_type, claimed)
        if _BINARY.get(media_type) is None:
            raise FieldValueError("url", "can be that of an image or a PDF alone: attach the text itself")
        return Attachment(media_type, None, 0, file.name, file.url)
    if len(file.data) > most:
        raise FieldValueError("data", f"has {len(file.data)} bytes, and may have {most} (limits.max_attachment)")
    media_type = media_type_of(file.data, file)
    from hashlib import sha256  # noqa: PLC0415 - it loads OpenSSL, and few sessions have files

    return Attachment(media_type, sha256(file.data).hexdigest(), len(file.data), file.name)


def media_type_of(data: bytes, file: File) -> str:
    """Return the type of a file's bytes, of any number. Raises FieldValueError that names a bad field of it."""
    if not data:
        raise FieldValueError("data", "must not be empty")
    return _found(data, file.name, None if file.media_type is None else _plain(file.media_type))


def _plain(media_type: str) -> str:
    name = media_type.partition(";")[0].strip().lower()
    return _ALIASES.get(name, name)


def _check_known(media_type: str, claimed: str | None) -> None:
    if media_type not in _BINARY and not re.fullmatch(_TEXTUAL, media_type):
        problem = f"{claimed or 'the data'} is none of the kinds that can be attached: "
        known = "images (PNG, JPEG, GIF, WebP), PDF, sounds (WAV, MP3) and texts in UTF-8"
        raise FieldValueError("data" if claimed is None else "media_type", problem + known)


def _found(data: bytes, name: str | None, claimed: str | None) -> str:
    """Return the type of some bytes. Raises FieldValueError if it is not the claimed one."""
    found = next((media_type for magic, media_type in _MAGIC if re.match(magic, data, re.DOTALL)), None)
    if found is not None:
        if claimed not in (None, found, _UNTYPED):
            raise FieldValueError("media_type", f"is {claimed}, but the data is {found}")
        return found
    if claimed in _BINARY:
        raise FieldValueError("media_type", f"is {claimed}, but the data is not")
    if claimed == _UNTYPED:
        claimed = None
    if claimed is not None:
        _check_known(claimed, claimed)
    if not _is_text(data):
        if claimed is None:
            _check_known(_UNTYPED, None)
        raise FieldValueError("media_type", f"is {claimed}, but the data is no text in UTF-8")
    if len(data) > MAX_TEXT:
        raise FieldValueError("data", f"has {len(data)} bytes, and a text may have {MAX_TEXT}")
    guessed = claimed or mimetypes.guess_type(name or "")[0] or ""
    return guessed if re.fullmatch(_TEXTUAL, guessed) else "text/plain"


def _is_text(data: bytes) -> bool:
    # Of more than a text may have the beginning is enough, for an error that says so.
    try:
        getincrementaldecoder("utf-8")().decode(data[: MAX_TEXT + 1], final=len(data) <= MAX_TEXT)
    except UnicodeDecodeError:
        return False
    return b"\0" not in data
