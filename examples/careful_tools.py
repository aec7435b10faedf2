"""Tools with care: a key for what must happen once, errors that the model can read, and a test of their arguments."""

import trio

import warren
from warren import Config, open_supervisor
from warren.events import ToolExecutionCompleted
from warren.testing import ScriptedModel, call, say
from warren.tools import ToolArgumentsError, ToolContext, ToolError, current_call

MOST = 10_000
PAID: dict[str, str] = {}  # what a bank keeps, which pays once for each key


@warren.tool
async def pay(order: str, cents: int) -> str:
    """Pay money back for an order."""
    if cents > MOST:
        raise ToolError(f"more than {MOST} cents need a person")  # the model gets this text
    this: ToolContext = current_call()
    return PAID.setdefault(this.key, f"receipt {len(PAID) + 1} for {order}")


def refusal(cents: object) -> str | None:
    """Return why the arguments of a call are refused before the tool runs; None if they are good."""
    try:
        pay.bind({"order": "17", "cents": cents})
    except ToolArgumentsError as error:
        return str(error)
    return None


async def main() -> None:
    """Have a model call the tool with too much, and then with less."""
    print(refusal(5), refusal("much"), sep="\n")
    model = ScriptedModel([call("pay", order="17", cents=99_999), call("pay", order="17", cents=500), say("Paid.")])
    async with open_supervisor(Config(model="desk"), tools=[pay], providers={"desk": model}) as service:
        await service.create_session("It is broken.", on_event=print_results)
    print(*PAID.values())


def print_results(envelope: warren.Envelope) -> None:
    """Print what the model gets for its calls."""
    if isinstance(envelope.event, ToolExecutionCompleted):
        print(envelope.event.result)


if __name__ == "__main__":
    trio.run(main)
