"""`Redaction` in a runtime with a store on the disk: nothing of a secret is in its files, its events or its history."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import open_runtime, replay, transcript
from warren.actors.guards.redactor import Redactor
from warren.actors.guards.secrets import cards
from warren.agents.hooks import Go, HookedCall, Hooks, ToolOutcome
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, ReasoningBlock, SystemMessage, TextBlock, ToolUseBlock
from warren.guards import Redaction
from warren.models.model import ModelReply, ModelRequest, ReasoningPiece, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor

CARD, IBAN, EMAIL = "4111 1111 1111 1111", "DE89370400440532013000", "ann@mail.example"
KEY = "ghp_" + "a1B2" * 9
NUMBER = 5_500_000_000_000_004
SECRETS = (CARD, IBAN, EMAIL, KEY, str(NUMBER), "WORD-77")


class Bank:
    """A model that says and calls secrets, and what it was sent."""

    def __init__(self) -> None:
        self.sent = list[str]()

    async def answer(self, request: ModelRequest, emit: Any) -> ModelReply:
        """Call the tool with secrets; then say one."""
        await trio.lowlevel.checkpoint()
        self.sent += [
            codec.encode_message(each).decode() for each in request.messages if not isinstance(each, SystemMessage)
        ]
        if any("paid" in each for each in self.sent):
            emit(ReasoningPiece(f"they want {EMAIL}"))
            emit(TextPiece(f"I told {EMAIL}"))
            thought = ReasoningBlock(f"they want {EMAIL}", {"signature": "abc"})
            cited = TextBlock(f"I told {EMAIL}", {"citations": [EMAIL]})
            return ModelReply(AssistantMessage((thought, cited)), reply("").usage)
        emit(TextPiece("Paying "))
        emit(TextPiece(f"to {IBAN}"))
        args = {"to": IBAN, "card": NUMBER, "more": {"key": [KEY, "WORD-77"]}}
        return reply(f"Paying to {IBAN}", ToolUseBlock("c1", "pay", args))


def kept(folder: Path, *suffixes: str) -> str:
    """Return what the files of a store hold, its write-ahead log too; there must be some of each suffix."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert set(suffixes) <= {each.suffix for each in files}
    return "".join(each.read_bytes().decode("utf-8", "replace") for each in files)


async def used(folder: Path, *hooks: Hooks) -> tuple[str, list[str], Bank]:
    """Use a session with secrets in a prompt, an argument and a result; return what is left, and what a tool got."""
    bank, got, shown = Bank(), list[str](), list[str]()

    @tool
    async def pay(to: str, card: int | str, more: dict[str, Any]) -> str:
        """Pay."""
        await trio.lowlevel.checkpoint()
        got.append(f"{to} {card} {more}")
        shown.append(kept(folder))  # in the middle of the turn
        return f"paid from {CARD}, told {EMAIL}"

    config = Config(store=StoreConfig(folder), model="test")
    model = FunctionModel(bank.answer)
    async with open_supervisor(config, tools=[pay], hooks=hooks, providers={"test": model}) as service:
        result = await service.create_session(f"Pay with {CARD} to {IBAN}; my key is {KEY}, and WORD-77")
        shown += [result.text, repr(await service.read(result.session_id))]
        shown.append(repr(await service.history(result.session_id)))
        shown += [repr(each) for each in await replay(service, result.session_id)]
    shown.append(kept(folder, ".sqlite3", ".json", ".jsonl"))  # with the projections
    return "\n".join(shown), got, bank


def found(text: str) -> set[str]:
    """Return the secrets that are in a text."""
    return {each for each in SECRETS if each in text}


async def test_nothing_of_a_secret_is_anywhere(tmp_path: Path) -> None:
    """Neither in the files of the store and its projections, events and history, nor sent to the model or the tool."""
    shown, got, bank = await used(tmp_path, Redaction({"word": r"WORD-\d+"}))
    assert found(shown) == set()
    assert found("\n".join(bank.sent)) == set()
    assert got == ["[iban] [card] {'key': ['[key]', '[word]']}"]
    for told in ("Pay with [card] to [iban]; my key is [key], and [word]", "paid from [card], told [email]"):
        assert told in shown
    assert "I told [email]" in shown


async def test_without_it_all_secrets_are_there(tmp_path: Path) -> None:
    """So the test above can fail."""
    shown, _, bank = await used(tmp_path)
    assert found(shown) == set(SECRETS)
    assert found("\n".join(bank.sent)) == set(SECRETS)


async def test_a_queued_prompt_is_stored_as_it_came_unless_it_is_redacted_before(tmp_path: Path) -> None:
    """What the page says: the hooks see it when a turn takes it, and `text` is the safe way."""
    redaction, go_on = Redaction(), trio.Event()

    async def answer(_request: ModelRequest, _emit: Any) -> ModelReply:
        await go_on.wait()
        return reply("done")

    config = Config(store=StoreConfig(tmp_path), model="test")
    async with (
        open_supervisor(config, hooks=[redaction], providers={"test": FunctionModel(answer)}) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(service.start_turn, session_id, "Wait.")
        await trio.testing.wait_all_tasks_blocked(0.1)

        async def queue(prompt: str) -> None:
            await service.start_turn(session_id, prompt, mode="queue")

        nursery.start_soon(queue, redaction.text(f"safe {KEY}"))
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert "safe [key]" in kept(tmp_path)
        assert KEY not in kept(tmp_path)
        nursery.start_soon(queue, f"unsafe {EMAIL}")
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert f"unsafe {EMAIL}" in kept(tmp_path)
        go_on.set()
    assert "unsafe [email]" in kept(tmp_path)


async def test_arguments_that_another_hook_has_changed() -> None:
    """They are redacted too, if that hook stands before; of the other hooks nothing else is known."""

    class Fills(Hooks):
        async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome:
            return await go(call.with_args({"to": EMAIL}))

    @tool
    async def pay(to: str) -> str:
        """Pay."""
        await trio.lowlevel.checkpoint()
        return f"paid {to[1:]}"

    model = says(reply("", ToolUseBlock("c1", "pay", {"to": "-"})), reply("done"))
    async with open_runtime(model, tools=[pay], hooks=[Fills(), Redaction()]) as service:
        session_id = (await service.create_session("Pay.")).session_id
        assert "paid email]" in repr(await transcript(service, session_id))


@pytest.mark.parametrize(
    "value", [{"a": [1, True, None, 2.5, "x"]}, [], {}, "text", 4111111111111112, {"n": 1e300}, float("1.5")]
)
def test_data_without_secrets_stays_the_same_object(value: Any) -> None:
    """So the requests of turns without secrets are not encoded anew."""
    assert Redactor([("card", cards)]).data(value) is value
