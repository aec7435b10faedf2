"""A gateway whose model asks for the tool `dig`, which its client runs, and then says what that has dug.

It tells its port on its standard output. Its arguments are the folder of the store, or the address of the database, and
the port.
"""

import json
import sys
from pathlib import Path

import trio

from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway
from warren.transport.providers.scripted import ScriptedCall, ScriptedModel, ScriptedStep

STEPS = (ScriptedStep(tool_calls=(ScriptedCall("dig", {"where": "here"}),)), ScriptedStep("It is dug."))


async def main() -> None:
    """Serve until killed."""
    place, port = sys.argv[1], int(sys.argv[2])
    store = PostgresConfig(place, lease=2.0) if "://" in place else StoreConfig(Path(place), lease=2.0)
    config = Config(store=store, provider="digger", model="scripted")
    runtime = open_supervisor(config, providers={"digger": ScriptedModel(STEPS)}, environ={})
    async with runtime as service, trio.open_nursery() as nursery:
        port = await nursery.start(serve_gateway, service, GatewayConfig(port=port))
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
