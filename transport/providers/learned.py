"""The memory of what a server does not take of its protocol."""

from typing import Final

import attrs
import trio

from warren.base.values import define
from warren.transport.providers.repair import Learned

LEARNED_SECONDS: Final = 3600.0
"""Seconds for which a server is taken at its word: a newer version may take what this one refuses."""
MOST_MODELS: Final = 256
"""Models of which each provider remembers what was refused."""


@define
class Memory:
    """Refusals of a server by model, kept in memory for `LEARNED_SECONDS`.

    Attributes:
        configured: what the configuration says of it.
    """

    configured: Learned
    _models: dict[str, tuple[float, Learned]] = attrs.field(factory=dict)

    def of(self, model: str) -> Learned:
        """Return what is known of a model."""
        if model not in self._models:
            return self.configured
        until, learned = self._models[model]
        if trio.current_time() < until:
            return learned
        del self._models[model]
        return self.configured

    def keep(self, model: str, learned: Learned) -> None:
        """Remember what the server does not take for a model."""
        if learned == self.of(model):
            return
        if len(self._models) >= MOST_MODELS:
            del self._models[next(iter(self._models))]
        self._models[model] = (trio.current_time() + LEARNED_SECONDS, learned)
