"""Token counts of model calls, as a provider reports them."""

from decimal import Decimal
from typing import ClassVar, Final

import attrs

from warren.base.fields import LEFT_OUT
from warren.base.values import frozen, value


@frozen
class Usage:
    """Tokens of one or more model calls.

    Attributes:
        input_tokens: tokens sent to the model, cached ones included.
        output_tokens: tokens the model produced.
        cache_creation_tokens: input tokens the provider wrote to its prompt cache.
        cache_read_tokens: input tokens the provider read from its prompt cache.
        estimated: whether some figure is an estimate from the text's length, as a provider reported none.
        cost: the cost in US dollars, by the list prices of the catalog; None if the price of some call is unknown.
    """

    WHOLE: ClassVar[bool] = True
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    estimated: bool = attrs.field(default=False, metadata=LEFT_OUT)

    cost: Decimal | None = attrs.field(default=None, metadata=LEFT_OUT)

    @property
    def known_cost(self) -> Decimal | None:
        """The cost; 0 before the first call, and None if it is unknown. A provider may tell a cost without tokens."""
        return Decimal() if self.cost is None and not self.total_tokens else self.cost

    @property
    def total_tokens(self) -> int:
        """Input plus output tokens: the number that token budgets count."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        # The sum looks at each figure: a host's provider may have counted something that is no number, and that raises.
        if self is NO_USAGE and other.total_tokens + other.cache_creation_tokens + other.cache_read_tokens >= 0:
            return other
        total: Usage = _Open(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_creation_tokens + other.cache_creation_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.estimated or other.estimated,
            self._cost_with(other),
        )
        total.__class__ = Usage  # frozen once its fields are set: each turn adds to its session's tokens
        return total

    def _cost_with(self, other: "Usage") -> Decimal | None:
        if self.cost is None and other.cost is None:  # of a model without prices: nothing to add up
            return None
        one, two = self.known_cost, other.known_cost
        if one is None or two is None or (self.cost is None and other.cost is None):
            return None
        return one + two


@value
class _Open(Usage):
    """A sum that is not frozen yet."""


NO_USAGE: Final = Usage()
