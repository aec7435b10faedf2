"""The process of a local embedder: `python -m warren.transport.providers.local_model MODEL FOLDER`.

It loads a model with fastembed and answers on its standard streams until stdin ends; it connects to nothing. Each part
on a stream has its length in front. The first answer is an object: the length of the vectors, or the reason why there
are none. Then each text gets its vector, as numbers of four bytes.
"""

import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from fastembed import TextEmbedding

LENGTH: Final = struct.Struct("<I")
_TOKENIZER: Final = "tokenizer.json"


def main(model: str, folder: Path) -> None:
    """Load the model, and answer."""
    # The parent ends it, when its own work is done: Ctrl-C at a terminal and a service manager reach all processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        opened = _load(model, folder)
    except Exception as exc:  # noqa: BLE001 - of fastembed, ONNX Runtime and tokenizers, each of their own kinds
        _write(json.dumps({"reason": " ".join(str(exc).split()) or type(exc).__name__}).encode())
        return
    if opened is None:
        _write(json.dumps({"unknown": model}).encode())
        return
    _write(json.dumps({"dimensions": opened.embedding_size}).encode())
    for text in _texts(sys.stdin.buffer):
        (vector,) = opened.embed([text], batch_size=1)
        _write(vector.astype("<f4").tobytes())


def _load(model: str, folder: Path) -> "TextEmbedding | None":
    """Return the model; None if fastembed knows none of this name."""
    from fastembed import TextEmbedding  # noqa: PLC0415 - this module is imported for the form of its streams, too
    from loguru import logger  # noqa: PLC0415 - fastembed writes its failures to it

    logger.disable("fastembed")
    if model.lower() not in {each["model"].lower() for each in TextEmbedding.list_supported_models()}:
        return None
    place: dict[str, Any] = {"cache_dir": str(folder)}
    if (folder / _TOKENIZER).exists():
        place = {"specific_model_path": str(folder)}
    # One thread takes less processor time for each text than several, and leaves the event loop its core.
    return TextEmbedding(model, threads=1, providers=["CPUExecutionProvider"], local_files_only=True, **place)


def _texts(stream: BinaryIO) -> Iterator[str]:
    while head := stream.read(LENGTH.size):
        yield stream.read(*LENGTH.unpack(head)).decode()


def _write(part: bytes) -> None:
    sys.stdout.buffer.write(LENGTH.pack(len(part)) + part)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
