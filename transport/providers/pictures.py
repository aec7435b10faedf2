"""Files in the answers of models, such as pictures: base64 of servers becomes bytes, which no message has. No I/O."""

import re
import wave
from base64 import b64decode
from binascii import Error as NoBase64
from io import BytesIO
from typing import Final

from warren.conversation.attachments import Attachment, File

_DATA_URL: Final = re.compile(r"data:([^;,]*)[^,]*;base64,", re.IGNORECASE)
_NAMES: Final = re.compile(rb'"(data|result|partial_image_b64)":\s*"\Z')
"""The bytes before the base64 of a file in JSON; a data URL is one anywhere."""
_NEAR: Final = 64
"""Bytes that the name of a member and the head of a data URL have at most."""
LEAST: Final = 1024
"""Bytes from which on a text may be that of a file."""
STEP: Final = 256 * 1024
"""Characters that are decoded in one step, for which no other thread can run."""


def file_of(data: str, media_type: str) -> File:
    """Return a file that a server sent in base64, in one text or in several one behind the other.

    One without bytes stands for data that is no base64: the runtime puts a note in its place, and the answer stays.
    The type of texts alone counts: servers often name a wrong one for pictures, whose bytes tell it.
    """
    plain = data.translate(_STANDARD) if "-" in data or "_" in data or "\n" in data else data
    parts = _PADDED.findall(plain) if plain.find("=", 0, -2) >= 0 else [plain]
    try:
        found = b"".join([_decoded(part) for part in parts])
    except NoBase64:
        return File(b"", name=f"{media_type[:_NEAR] or 'a file'}, which is not in base64")
    return File(found, media_type=media_type if media_type.startswith("text/") else None)


def _decoded(part: str) -> bytes:
    part += "=" * (-len(part) % 4)
    return b"".join([b64decode(part[at : at + STEP], validate=True) for at in range(0, len(part), STEP)])


_PADDED: Final = re.compile(r"[^=]+=*")
_STANDARD: Final = str.maketrans("-_", "+/", "\r\n")


def sound_of(data: str) -> File:
    """Return the sound that a server sent in base64; bare samples, as OpenAI streams them, become a WAV file."""
    file = file_of(data, "audio/wav")
    samples = file.data or b""
    if not samples or samples.startswith(_SOUNDS):
        return file
    whole = BytesIO()
    with wave.open(whole, "wb") as out:
        out.setparams((1, 2, 24_000, 0, "NONE", ""))  # `pcm16` of OpenAI: mono, 16 bits, 24 kHz
        out.writeframes(samples)
    return File(whole.getvalue())


_SOUNDS: Final = (b"RIFF", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"OggS", b"fLaC")
"""How files of sounds begin."""


def file_at(url: str) -> File | None:
    """Return the file that a data URL has in it; None for another address."""
    head = _DATA_URL.match(url)
    return None if head is None else file_of(url[head.end() :], head[1])


def reference_of(media_type: str) -> Attachment:
    """Return what stands for a file in an answer until the runtime has stored its bytes."""
    return Attachment(media_type or "image/png")


def weight_without_files(data: bytes, most: int) -> int:
    """Return the bytes of JSON without the texts of its files, which are quickly parsed; it stops above `most`."""
    at, rest = 0, 0
    while (end := data.find(b'"', at)) >= 0 and rest <= most:
        if end - at < LEAST or not (
            _NAMES.search(data[max(0, at - _NEAR) : at]) or b";base64," in data[at : at + _NEAR]
        ):
            rest += end - at
        at, rest = end + 1, rest + 1
    return rest + len(data) - at
