"""A node that sends what is due, with the echo model. It tells when it is ready, and runs until it is killed.

Its argument is the folder of the store, or the address of the database.
"""

import json
import sys
from pathlib import Path

import trio

from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor


async def main() -> None:
    """Open the store, and wait."""
    place, lease = sys.argv[1], 2.0
    store = PostgresConfig(place, lease=lease) if "://" in place else StoreConfig(Path(place), lease=lease)
    async with open_supervisor(Config(store=store, model="echo"), environ={}):
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
