"""The picture in `docs/architecture.md`: the folders of the library and their imports, read from the code.

`python -m tests.docs.rooms docs/architecture.md` renews it in place.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.docs.parts import with_part
from tests.support.imports import library, module_of, sources
from tests.support.layers import FOLDERS, LAYERS

BEGIN: Final = "<!-- made from the imports of the code by `make docs` -->\n"
END: Final = "<!-- the end of the picture -->\n"


def renewed(page: str) -> str:
    """Return the page with the picture as the code has it now."""
    rooms = {room for path in sources() if path.stem == "__init__" and (room := room_of(module_of(path))) is not None}
    return with_part(page, BEGIN, END, _picture(rooms, between(rooms, library())))


def room_of(module: str) -> str | None:
    """Return the folder within a layer that a module belongs to, such as `actors/turn`; None for loose modules."""
    parts = module.split(".")[1:]
    layer = parts[0] if parts and parts[0] in FOLDERS else "domain"
    inner = parts[1:] if layer in FOLDERS else parts
    return f"{layer}/{inner[0]}" if inner else None


def between(rooms: set[str], graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return which folders of a layer import which others of it, without the imports that follow from others."""
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module, imported in graph.items():
        room = room_of(module)
        if room in rooms:
            others = {other for each in imported if (other := room_of(each)) in rooms and other != room}
            found[room].update(each for each in others if _layer(each) == _layer(room))
    for room, others in found.items():
        for other in sorted(others):
            others.discard(other)
            if not _leads(found, room, other):
                others.add(other)
    return found


def _leads(graph: Mapping[str, set[str]], start: str, end: str) -> bool:
    """Return whether one folder imports another one through others."""
    seen, waiting = set[str](), [start]
    while waiting:
        for each in graph[waiting.pop()] - seen:
            seen.add(each)
            waiting.append(each)
    return end in seen


def _layer(room: str) -> str:
    return room.partition("/")[0]


def _picture(rooms: set[str], graph: Mapping[str, set[str]]) -> Iterator[str]:
    yield "```mermaid\nflowchart BT\n"
    for layer in LAYERS:
        yield f"    subgraph {layer}\n"
        inner = sorted(room for room in rooms if _layer(room) == layer)
        for room in inner:
            yield f"        {_name(room)}[{room.partition('/')[2]}]\n"
        for room in inner:
            for other in sorted(graph[room]):
                yield f"        {_name(room)} --> {_name(other)}\n"
        yield "    end\n"
    for inward, outward in itertools.pairwise(LAYERS):
        yield f"    {outward} ==> {inward}\n"
    yield "```\n"


def _name(room: str) -> str:
    return room.replace("/", "_")


if __name__ == "__main__":
    PAGE: Final = Path(sys.argv[1])
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
