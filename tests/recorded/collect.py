"""Collects the recordings from clones: `python -m tests.recorded.collect FOLDER`.

The folder has a clone, or a bare repository, of each source under its name in `SOURCES`. Answers are taken, and no
requests. What could be a key, or belong to a person, is replaced; base64 is shortened, as the parsers of the protocols
do not look into it.
"""

import gzip
import json
import lzma
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import yaml

from tests.recorded.corpus import ARCHIVE, INDEX, Protocol, Recording

LONGEST_BASE64: Final = 2048
KEPT_BASE64: Final = 512
BASE64: Final = re.compile(rf"[A-Za-z0-9+/_-]{{{LONGEST_BASE64},}}=*")
SECRETS: Final = (
    (re.compile(r"(?<![A-Za-z0-9+/_-])sk-[A-Za-z0-9_-]{8,}"), "sk-scrubbed"),
    (re.compile(r"AIza[A-Za-z0-9_-]{30,}"), "AIza-scrubbed"),
    (re.compile(r"\bya29\.[A-Za-z0-9_-]+"), "ya29.scrubbed"),
    (re.compile(r"\bBearer [A-Za-z0-9._-]{8,}"), "Bearer scrubbed"),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"), "gh-scrubbed"),
    (re.compile(r"\b(org|proj|user)([-_])(?=[A-Za-z]*\d)[A-Za-z0-9]{12,}\b"), r"\1\2scrubbed"),
    (re.compile(r"\bprojects/\d{6,}"), "projects/1"),
    (re.compile(r"(?:(?<=\\n)|(?<![\\\w.+-]))[\w.+-]+@[\w-]+(\.[\w-]+)*\.[a-z]{2,6}\b"), "someone@example.com"),
)
HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
LAST: Final = ("message_stop", "response.completed", "response.failed", "response.incomplete")
"""The last events of an answer."""
STREAM: Final = "text/event-stream"
JSON: Final = "application/json"


@attrs.frozen
class Source:
    """A repository with recordings.

    Attributes:
        repository: its place on GitHub.
        licence: its licence.
        files: the pattern of the paths of its recordings.
    """

    repository: str
    licence: str
    files: str


SOURCES: Final = {
    "anthropic-sdk-python": Source(
        "anthropics/anthropic-sdk-python", "MIT", r"tests/(fixtures/.*\.sse|lib/streaming/fixtures/.*\.txt)"
    ),
    "anthropic-sdk-typescript": Source(
        "anthropics/anthropic-sdk-typescript", "MIT", r"tests/lib/tools/nockFixtures/.*"
    ),
    "js-genai": Source("googleapis/js-genai", "Apache-2.0", r"test/system/recordings/.*\.json"),
    "llm": Source("simonw/llm", "Apache-2.0", r"tests/cassettes/.*\.yaml"),
    "llm-anthropic": Source("simonw/llm-anthropic", "Apache-2.0", r"tests/cassettes/.*\.yaml"),
    "llm-gemini": Source("simonw/llm-gemini", "Apache-2.0", r"tests/cassettes/.*\.yaml"),
    "openai-python": Source("openai/openai-python", "Apache-2.0", r"\.inline-snapshot/external/.*\.bin"),
    "pydantic-ai": Source("pydantic/pydantic-ai", "MIT", r"tests/.*cassettes/.*\.ya?ml"),
    "vercel-ai": Source("vercel/ai", "Apache-2.0", r"packages/.*/__fixtures__/.*\.(chunks\.txt|json|sse)"),
}


def main(folder: Path) -> None:
    """Write the archive and the index."""
    found: dict[bytes, Recording] = {}
    index = list[str]()
    for name, source in SOURCES.items():
        if not (clone := folder / name).exists():
            say(f"{name}: there is no clone")
            continue
        taken: dict[str, list[int]] = {}
        for path, data in files_of(clone, source.files):
            for place, each in recordings(f"{name}/{path}", data):
                if (key := sha256(f"{each.protocol} {each.status} {each.body}".encode()).digest()) not in found:
                    found[key] = each
                    taken.setdefault(path, []).append(place)
        commit = git(clone, "rev-parse", "HEAD").decode().strip()
        index += [f'["{name}"]', f'repository = "{source.repository}"', f'commit = "{commit}"']
        index += [f'licence = "{source.licence}"', "", f'["{name}".files]']
        index += [f"{json.dumps(path)} = {places}" for path, places in sorted(taken.items())] + [""]
        say(f"{name}: {sum(map(len, taken.values()))}")
    rows = [attrs.astuple(each) for each in sorted(found.values(), key=lambda each: each.name)]
    text = "\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    ARCHIVE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    INDEX.write_text("# Made by `python -m tests.recorded.collect`.\n\n" + "\n".join(index).rstrip() + "\n")


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(f"{text}\n")


def git(clone: Path, *arguments: str) -> bytes:
    """Return what git says."""
    return subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=True).stdout  # noqa: S607 - that of the machine


def files_of(clone: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and the contents of a clone's files."""
    for line in git(clone, "ls-tree", "-r", "-z", "HEAD").decode().split("\0")[:-1]:
        (_, _, blob), path = line.partition("\t")[0].split(), line.partition("\t")[2]
        if re.fullmatch(pattern, path):
            try:
                yield path, git(clone, "cat-file", "blob", blob)
            except subprocess.CalledProcessError:
                say(f"{path} is not in the clone")


def recordings(name: str, data: bytes) -> Iterator[tuple[int, Recording]]:
    """Yield the recordings in a file, with their places there."""
    text = data.decode(errors="replace")
    if re.search(r"/cassettes/", name):
        found = cassette(text)
    elif name.endswith(".chunks.txt"):
        found = map(streamed, answers(map(parsed, filter(None, text.splitlines()))))
    elif name.endswith((".sse", ".txt", ".bin")) and not text.startswith("{"):
        found = iter([(STREAM, text, "", 200, {})])
    elif "/recordings/" in name:
        found = google(json.loads(text))
    elif "/nockFixtures/" in name:
        found = (
            (JSON, dumped(each["response"]), urlsplit(each["path"]).path, each["status"], {})
            for each in json.loads(text)
        )
    else:
        found = iter([(JSON, dumped(json.loads(text)), "", 200, {})])
    for place, (kind, body, path, status, headers) in enumerate(found):
        if body and (protocol := protocol_of(body, path)):
            clean = scrubbed(body)
            model = re.search(r'"model(?:Version|_id)?": ?"([^"]{1,80})"', clean)
            own = model[1] if model else ""
            yield place, Recording(f"{name}#{place}", protocol, own, status, kind, headers, clean)


Found = tuple[str, str, str, int, dict[str, str]]
"""The content type, the body, the path of the request, the status and the headers."""


def cassette(text: str) -> Iterator[Found]:
    """Yield the answers of a cassette of VCR."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(text, loader)  # noqa: S506 - a safe one
    for each in data.get("interactions") or ():
        if not {"request", "response"} <= each.keys():  # of a WebSocket
            continue
        request, response = each["request"], each["response"]
        place = urlsplit(str(request.get("uri")))
        headers = {
            key.lower(): value[0] if isinstance(value, list) else value
            for key, value in (response.get("headers") or {}).items()
        }
        kind = str(headers.get("content-type", "")).partition(";")[0]
        body = response.get("body") or ""
        raw = body.get("string") or "" if isinstance(body, dict) else body
        if "parsed_body" in response:
            raw = dumped(response["parsed_body"])
        elif isinstance(raw, bytes):
            raw = (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode(errors="replace")
        own = {key: str(headers[key]) for key in HEADERS if key in headers}
        status = (response.get("status") or {}).get("code", 200)
        if raw.startswith("[") and place.path.endswith(":streamGenerateContent"):
            kind, raw, *_ = streamed(json.loads(raw))
        yield kind, raw if request.get("method") == "POST" else "", place.path, status, own


def google(data: dict[str, Any]) -> Iterator[Found]:
    """Yield the answers of a recording of Google's."""
    for each in data["interactions"]:
        response = each["response"]
        kind = response["headers"].get("Content-Type", JSON).partition(";")[0]
        parts = response.get("bodySegments", [])
        text = streamed(parts)[1] if kind == STREAM else dumped(parts[0]) if len(parts) == 1 else ""
        yield kind, text, urlsplit(each["request"]["url"]).path, response["statusCode"], {}


def answers(events: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the events of each answer; some files have the answers of several steps one behind the other."""
    answer = list[Any]()
    for event in events:
        answer.append(event)
        if isinstance(event, dict) and event.get("type") in LAST:
            yield answer
            answer = []
    if answer:
        yield answer


def streamed(events: Sequence[Any]) -> Found:
    """Return events in the framing of their protocol, which the recording does not have."""
    if not all(isinstance(each, dict) for each in events):
        return STREAM, "", "", 200, {}
    named = (f"event: {each['type']}\n" if isinstance(each.get("type"), str) else "" for each in events)
    text = "".join(f"{name}data: {dumped(each)}\n\n" for name, each in zip(named, events, strict=True))
    return STREAM, text + ("data: [DONE]\n\n" if events and "choices" in events[-1] else ""), "", 200, {}


def parsed(line: str) -> Any:
    """Return an event; None if it is no JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def dumped(data: Any) -> str:
    """Return compact JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def protocol_of(body: str, path: str) -> Protocol | None:
    """Return the protocol of an answer: by the path of its request, or by its own form."""
    by_path: dict[str, Protocol] = {
        r"/chat/completions$": "openai-chat",
        r"/responses$": "openai-responses",
        r"/v1/messages$|/invoke$": "anthropic",
        r":(g|streamG)enerateContent$": "gemini",
    }
    if path.endswith("/invoke") and '"type":"message"' not in body:  # of another model
        return None
    if path:
        return next((protocol for pattern, protocol in by_path.items() if re.search(pattern, path)), None)
    by_form: dict[str, Protocol] = {
        r'"object": ?"chat\.completion|"choices": ?\[\{[^{]*"(delta|message)"': "openai-chat",
        r'"type": ?"response\.|"object": ?"response"': "openai-responses",
        r'"type": ?"message(_start)?"': "anthropic",
        r'"candidates": ?\[': "gemini",
    }
    return next((protocol for pattern, protocol in by_form.items() if re.search(pattern, body)), None)


def scrubbed(body: str) -> str:
    """Return a body without what is secret, personal, or too long to keep."""
    body = BASE64.sub(lambda match: match[0][:KEPT_BASE64], body)  # else the search for addresses takes minutes
    for pattern, instead in SECRETS:
        body = pattern.sub(instead, body)
    return body


if __name__ == "__main__":
    main(Path(sys.argv[1]))
