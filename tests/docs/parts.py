"""The parts of pages under `docs/` that are made from the code."""

from collections.abc import Iterable


def with_part(page: str, begin: str, end: str, made: Iterable[str]) -> str:
    """Return a page with a part made anew.

    Args:
        page: the page.
        begin: the mark before the part, which the page has once.
        end: the mark behind it, likewise.
        made: the texts that the part consists of.

    Raises:
        ValueError: if the page lacks a mark, or has one twice.
    """
    head, rest = page.split(begin)
    _, tail = rest.split(end)
    return "".join([head, begin, *made, end, tail])
