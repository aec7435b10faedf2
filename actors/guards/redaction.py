"""`Redaction`: secrets are replaced before the model, the store and the log have them."""

import re
from collections.abc import Mapping
from typing import Final

import attrs

from warren.actors.guards import secrets
from warren.actors.guards.redactor import Find, Redactor, finder
from warren.agents.hooks import (
    Asked,
    Denied,
    Go,
    HookedCall,
    HookedCompaction,
    HookedRequest,
    HookedTurn,
    Hooks,
    ToolOutcome,
    TurnEnd,
)
from warren.models.model import ModelReply


class Redaction(Hooks):
    """Replaces secrets by their kinds, such as `[card]`, before the model, the store and the log have them.

    It stands around prompts, requests to the model and its answers, and arguments and results of tools. What looks like
    a secret and is none is replaced too, so switch off what your tools need. Files are not looked into.

    Args:
        patterns: regular expressions of your own, by the kind that stands for what they match.
        cards: whether card numbers are replaced: 13 to 19 digits with the check digit of Luhn; `[card]`.
        ibans: whether IBANs with the right length and check digits (ISO 7064) are; `[iban]`.
        emails: whether e-mail addresses are; `[email]`.
        keys: whether API keys are, by the forms of their vendors; `[key]`.

    Raises:
        ValueError: a pattern is no regular expression.
    """

    loop: Final = "trio"
    holds: bool = True

    def __init__(
        self,
        patterns: Mapping[str, str | re.Pattern[str]] | None = None,
        *,
        cards: bool = True,
        ibans: bool = True,
        emails: bool = True,
        keys: bool = True,
    ) -> None:
        own = [(kind, finder(kind, pattern)) for kind, pattern in (patterns or {}).items()]
        bundled: list[tuple[str, Find, bool]] = [
            ("key", secrets.keys, keys),
            ("email", secrets.emails, emails),
            ("iban", secrets.ibans, ibans),
            ("card", secrets.cards, cards),
        ]
        self._redactor = Redactor([*own, *((kind, find) for kind, find, wanted in bundled if wanted)])

    def text(self, text: str) -> str:
        """Return a text without its secrets, for what reaches the store without a hook, such as queued prompts."""
        return self._redactor.text(text)

    async def on_turn(self, turn: HookedTurn, go: Go[HookedTurn, TurnEnd]) -> TurnEnd | Denied:
        """Redact the prompt, and the answer."""
        end = await go(turn.with_prompt(self.text(turn.prompt)))
        return attrs.evolve(end, text=self.text(end.text))

    async def on_model(self, request: HookedRequest, go: Go[HookedRequest, ModelReply]) -> ModelReply | Denied:
        """Redact the messages, but for the system prompt, and the answer with its tool calls."""
        messages = [self._redactor.message(each) for each in request.messages]
        same = all(new is old for new, old in zip(messages, request.messages, strict=True))
        reply = await go(request if same else request.changed(messages=messages))
        message = self._redactor.answer(reply.message)
        return reply if message is reply.message else attrs.evolve(reply, message=message)

    async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
        """Redact the arguments, and the result."""
        args = self._redactor.data(call.args)
        outcome = await go(call if args is call.args else call.with_args(args))
        return attrs.evolve(outcome, text=self.text(outcome.text))

    async def on_compaction(self, compaction: HookedCompaction, go: Go[HookedCompaction, str]) -> str | Denied:
        """Redact the instructions, and the summary."""
        asked = compaction.instructions
        return self.text(await go(compaction if asked is None else compaction.with_instructions(self.text(asked))))
