"""The files of a projection, beside those that are made anew."""

from pathlib import Path

from warren.settings.config import StoreConfig
from warren.storage.projection import Follower


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of the projection but the checkpoint, by their paths."""
    paths = [*folder.glob("**/index.jsonl"), *folder.glob("**/sessions/*/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def check(folder: Path) -> int:
    """Go on from what was left, make everything anew, and compare; return how many files there are."""
    follower = Follower(StoreConfig(folder))
    while follower.step(1).more:
        pass
    follower.finish()
    followed = files(folder)
    follower.begin_anew()
    while follower.step(1).more:
        pass
    follower.finish()
    follower.close()
    assert followed == files(folder)
    return len(followed)
