"""A gateway whose model has a build made, by a tool that tells its completion token and waits for the result.

It tells its port and each token on its standard output. With `slow` as its second argument the tool takes a minute
after it has told its token.
"""

import json
import sys
from functools import partial
from pathlib import Path

import trio

from warren.models.tools import ToolOutput, current_call, tool
from warren.settings.config import Config, StoreConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway
from warren.transport.providers.scripted import ScriptedCall, ScriptedModel, ScriptedStep

CREDENTIAL = "the-token-of-clients-which-the-outside-does-not-have"
STEPS = (ScriptedStep(tool_calls=(ScriptedCall("build", {}),)), ScriptedStep("It builds."))


def tell(**what: object) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


@tool(restart="replay")
async def build() -> ToolOutput:
    """Build."""
    token = current_call().token(expires=3600)
    tell(token=token)
    if sys.argv[2] == "slow":
        await trio.sleep(60)
    return ToolOutput.later(token)


async def main() -> None:
    """Serve until killed."""
    config = Config(store=StoreConfig(Path(sys.argv[1]), lease=2.0), provider="builder", model="scripted")
    model = {"builder": ScriptedModel(STEPS)}
    served = GatewayConfig(port=0, token=CREDENTIAL)
    runtime = open_supervisor(config, tools=[build], providers=model, environ={})
    async with runtime as service, trio.open_nursery() as nursery:
        tell(port=await nursery.start(serve_gateway, service, served))
        if sys.argv[3] == "first":
            nursery.start_soon(partial(service.create_session, "Does it build?", idempotency_key="build"))
        else:
            result = await service.create_session("Does it build?", idempotency_key="build")
            found = (await service.history(result.session_id)).messages
            told = [each.content for entry in found for each in getattr(entry.message, "results", ())]
            tell(text=result.text, results=told)


if __name__ == "__main__":
    trio.run(main)
