"""A program that is made to be killed: it forks one session for ever and tells of each fork on stdout."""

import os
import sys
from pathlib import Path

import trio

from warren import open_supervisor
from warren.conversation import codec
from warren.settings.config import Config, StoreConfig


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


async def main(folder: Path, session_id: str) -> None:
    """Fork, tell, fork."""
    async with open_supervisor(Config(store=StoreConfig(folder), model="echo"), environ={}) as service:
        while True:
            state = (await service.fork(session_id)).state
            tell(fork=state.session_id)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
