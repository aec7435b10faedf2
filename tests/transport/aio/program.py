"""Programs on asyncio that the tests run as processes of their own: `program.py FUNCTION ARG…`."""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import warren.aio
from warren import Config, Limits, StoreConfig
from warren.models.model import Emitted, ModelReply, ModelRequest
from warren.testing import ScriptedModel, say


def say_it(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Slow:
    """A model on the program's loop that never answers."""

    async def complete(self, request: ModelRequest, emit: Callable[[Emitted], None]) -> ModelReply:
        """Wait for ever."""
        del request, emit
        say_it("waiting")
        try:
            await asyncio.sleep(3600)
            raise AssertionError
        except asyncio.CancelledError:
            say_it("cancelled")
            raise


async def interrupted(folder: str) -> None:
    """Take a turn that only Ctrl-C ends, with clean-up in the body."""
    config = Config(model="slow", store=StoreConfig(Path(folder)))
    async with warren.aio.open_supervisor(config, providers={"slow": Slow()}) as service:
        try:
            await service.create_session("hello")
        except asyncio.CancelledError:
            say_it("body cancelled")
            raise
        finally:
            say_it(f"sessions {len((await service.list()).sessions)}")
    say_it("never")


async def stuck() -> None:
    """Take a turn whose model shields itself on trio, so that leaving takes the drain time."""
    import trio  # noqa: PLC0415 - this program needs it

    class Shielded(ScriptedModel):
        async def complete(self, request, emit):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            del request, emit
            say_it("waiting")
            with trio.CancelScope(shield=True):
                await trio.sleep(60)

    config = Config(model="slow", limits=Limits(drain=1))
    async with warren.aio.open_supervisor(config, providers={"slow": Shielded([say("x")])}) as service:
        try:
            await service.create_session("hello")
        finally:
            say_it("leaving")


async def forked() -> None:
    """Use the service in a child of this process."""
    async with warren.aio.open_supervisor(Config(model="echo")) as service:
        assert (await service.create_session("a")).text == "a"
        if (child := os.fork()) == 0:
            try:
                asyncio.events._set_running_loop(None)  # noqa: SLF001 - a child begins a loop of its own
                asyncio.run(service.read("x"))
            except RuntimeError as exc:
                say_it(str(exc))
            except BaseException:  # noqa: BLE001 - the child must not go on
                traceback.print_exc()
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert (await service.create_session("b")).text == "b"
    say_it("over")


def left_open() -> None:
    """Close the loop without leaving the runtime."""
    loop = asyncio.new_event_loop()
    opened = warren.aio.open_supervisor(Config(model="echo"))
    service = loop.run_until_complete(opened.__aenter__())
    say_it(loop.run_until_complete(service.create_session("hello")).text)
    loop.close()
    say_it("closed")


if __name__ == "__main__":
    function = globals()[sys.argv[1]]
    found = function(*sys.argv[2:])
    if asyncio.iscoroutine(found):
        asyncio.run(found)
