"""A caller that runs turn after turn, and remembers which of them were answered."""

from collections.abc import AsyncIterator

import attrs
import trio

from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.conversation.messages import UserMessage


async def prompts(service: SessionService, session_id: str) -> AsyncIterator[str]:
    """Yield the prompts that are stored, in order."""
    offset, total = 0, 1
    while offset < total:
        page = await service.history(session_id, offset=offset, limit=1000)
        for each in page.messages:
            if isinstance(each.message, UserMessage):
                yield each.message.content
        offset, total = offset + 1000, page.total


@attrs.define
class Talk:
    """The prompts of one caller: those that were answered, and the errors of those that failed for now."""

    session_id: str
    answered: list[str] = attrs.field(factory=list)
    failed: list[WarrenError] = attrs.field(factory=list)
    ends: bool = False

    async def go_on(self, service: SessionService) -> None:
        """Run turn after turn until it ends."""
        number = 0
        while not self.ends:
            number += 1
            try:
                await service.start_turn(self.session_id, str(number))
            except WarrenError as exc:
                self.failed.append(exc)
                await trio.sleep(0.01)
            else:
                self.answered.append(str(number))

    async def check(self, service: SessionService) -> None:
        """Check that each answered turn is there once, and that every failure was one for now."""
        assert [each.body() for each in self.failed if not each.retryable and each.cause != "outcome_unknown"] == []
        said = [text async for text in prompts(service, self.session_id)]
        assert len(said) == len(set(said)), "a turn is there twice"
        assert set(self.answered) <= set(said), "a confirmed turn is lost"


async def until_more(talks: list[Talk], more: int) -> None:
    """Return once each has so many more answers."""
    wanted = [len(each.answered) + more for each in talks]
    while any(len(each.answered) < count for each, count in zip(talks, wanted, strict=True)):  # noqa: ASYNC110
        await trio.sleep(0.01)
