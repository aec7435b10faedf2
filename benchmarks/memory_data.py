"""Labelled queries and texts for the memory benchmarks, taken from the packages installed on this machine.

Every query was written by a person for the text it should find: the first sentence of a docstring for its rest or
for the code below it, a function's name for its docstring, a comment for the lines it is about; in the prose of
READMEs a heading for its section, the first sentence of a paragraph for the others. Nothing is downloaded. Packages
are divided into a dev and a test split by a hash of their names.
"""

import ast
import hashlib
import itertools
import random
import re
import site
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs

Split = Literal["dev", "test"]
MIN_TEXT: Final = 120
MAX_TEXT: Final = 3_000
MAX_FILE: Final = 400_000
_WORD: Final = re.compile(r"[A-Za-z]{2,}")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECTION: Final = re.compile(r"^#{1,4} +(.{8,90})\n+((?:(?!^#).*\n){2,30})", re.MULTILINE)
_PARAGRAPH: Final = re.compile(r"([A-Z][^.\n]{25,150}\.)\s+(\S.{150,2500})", re.DOTALL)
_COMMENT: Final = re.compile(r"^( *)# ([A-Z].{25,})$")


@attrs.frozen
class Query:
    """A query, how it was found, and the number of the text it should find."""

    text: str
    kind: str
    answer: int
    split: Split


@attrs.frozen
class Labelled:
    """Texts, and queries for some of them."""

    texts: list[str]
    queries: list[Query]

    def of(self, split: Split) -> list[Query]:
        """Return the queries of one split."""
        return [query for query in self.queries if query.split == split]


@attrs.frozen
class _Pair:
    query: str
    kind: str
    text: str
    split: Split


def labelled(texts: int, queries: int, *, folders: Iterable[Path] = (), seed: int = 1) -> Labelled:
    """Return `texts` texts and up to `queries` queries over both splits, the same on every call.

    `folders` are looked through besides the standard library and the installed packages.
    """
    chance = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    pairs = _distinct(itertools.islice(_pairs([*_installed(), *folders]), 3 * texts))
    chance.shuffle(pairs)
    asked = _balanced(pairs, queries)
    wanted = set(asked)
    chosen = asked + [pair for pair in pairs if pair not in wanted][: max(0, texts - len(asked))]
    chance.shuffle(chosen)
    found = [Query(pair.query, pair.kind, at, pair.split) for at, pair in enumerate(chosen) if pair in wanted]
    return Labelled([pair.text for pair in chosen], found)


def filler(count: int, *, folders: Iterable[Path] = ()) -> list[str]:
    """Return `count` further texts: pieces of source of about twelve lines."""
    found: list[str] = []
    for path in _sources([*_installed(), *folders]):
        lines = _read(path).splitlines()
        pieces = ("\n".join(lines[at : at + 12]) for at in range(0, len(lines), 12))
        found += [piece for piece in pieces if len(piece) >= MIN_TEXT]
        if len(found) >= count:
            break
    return found[:count]


def _installed() -> list[Path]:
    return [Path(sysconfig.get_path("stdlib")), *map(Path, site.getsitepackages())]


def _sources(folders: Iterable[Path], pattern: str = "*.py") -> list[Path]:
    found = {path for folder in folders for path in folder.rglob(pattern) if path.stat().st_size < MAX_FILE}
    return sorted(found, key=lambda path: (hashlib.sha256(str(path.name).encode()).digest(), path))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _split(path: Path) -> Split:
    """Return the split of a file's package: no package is in both."""
    parts = path.parts
    inside = parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else parts[-2:]
    return "dev" if hashlib.sha256(inside[0].encode()).digest()[0] % 2 else "test"


def _pairs(folders: Sequence[Path]) -> Iterator[_Pair]:
    for pattern, read in (("METADATA", _prose), ("*.md", _prose), ("*.py", _code)):
        for path in _sources(folders, pattern):
            for query, kind, text in read(_read(path)):
                if MIN_TEXT <= len(text) <= MAX_TEXT and len(_WORD.findall(query)) > 1:
                    yield _Pair(query, kind, text, _split(path))


def _prose(source: str) -> Iterator[tuple[str, str, str]]:
    for heading, section in _SECTION.findall(source):
        yield heading, "heading for section", section.strip()
    for paragraph in re.split(r"\n\s*\n", source):
        if match := _PARAGRAPH.fullmatch(paragraph.strip()):
            yield match[1], "sentence for paragraph", match[2]


def _code(source: str) -> Iterator[tuple[str, str, str]]:
    yield from _documented(source)
    yield from _commented(source)


def _parse(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _documented(source: str) -> Iterator[tuple[str, str, str]]:
    lines = source.splitlines()
    for node in ast.walk(_parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        summary, _, rest = (ast.get_docstring(node) or "").partition("\n")
        name = " ".join(_CAMEL.sub(" ", node.name).replace("_", " ").split())
        kind = int(hashlib.sha256(f"{node.name}{node.lineno}".encode()).hexdigest(), 16) % 4
        if kind == 0:
            yield name, "name for docstring", f"{summary}\n{rest}".strip()
        elif kind == 1 and len(node.body) > 1:
            body = lines[node.body[1].lineno - 1 : node.end_lineno]
            yield summary, "summary for code", "\n".join([lines[node.lineno - 1], *body])
        else:
            yield summary, "summary for docstring", rest.strip()


def _commented(source: str) -> Iterator[tuple[str, str, str]]:
    lines = source.splitlines()
    for at, line in enumerate(lines):
        match = _COMMENT.match(line)
        if match and hashlib.sha256(line.encode()).digest()[0] < 64:  # noqa: PLR2004 - one in four
            yield match[2], "comment for code", "\n".join(lines[at + 1 : at + 14])


def _distinct(pairs: Iterable[_Pair]) -> list[_Pair]:
    """Leave out queries and texts that came before: an answer has to be the only one."""
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        keys = {" ".join(pair.query.lower().split()), " ".join(pair.text.split())}
        if not keys & seen:
            kept.append(pair)
        seen |= keys
    return kept


def _balanced(pairs: list[_Pair], count: int) -> list[_Pair]:
    """Return as many pairs of each kind and split, about `count` in all."""
    groups: dict[tuple[str, str], list[_Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.kind, pair.split), []).append(pair)
    share = count // max(1, len(groups))
    return [pair for group in groups.values() for pair in group[:share]]
