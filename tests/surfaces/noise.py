"""Input that is almost right: good requests, of which a part is replaced, lost or doubled, as values or as bytes."""

import json
import math
import random
from collections.abc import Sequence
from typing import Any, Final

import attrs

ODD: Final[tuple[Any, ...]] = (
    *(None, True, -1, 0, 1.5, 2**63, 10**30, 1e308, math.nan, math.inf),
    *("", " ", "\0", "é", "💥", "\ud800", "x" * 5000, "../../etc/passwd", "0", "null", "$ref", "2.0"),
    *([], {}, [[]], [None], {"a": 1}, {"": {}}, [1, "2", {}], "01890a5d-ac96-774b-bcce-b302099a8057"),
)


@attrs.frozen
class Noise:
    """Makes input from a source of chance; the same seed makes the same."""

    dice: random.Random

    def message(self, examples: Sequence[Any]) -> bytes:
        """Return a message made of a good one, sometimes as it was, and sometimes nothing of the kind."""
        if self.dice.random() < 0.05:
            return self.dice.randbytes(self.dice.randrange(60))
        value = self.dice.choice(examples)
        for _ in range(self.dice.choice((0, 1, 1, 2, 3))):
            value = self.odd(value)
        data = json.dumps(value, ensure_ascii=self.dice.random() < 0.5).encode(errors="surrogatepass")
        return self.bent(data, self.dice.choice((0, 0, 0, 1, 3)))

    def odd(self, value: Any) -> Any:
        """Return a value with one place of it made odd."""
        if isinstance(value, dict) and value and self.dice.random() < 0.9:
            return self._odd_object(value)
        if isinstance(value, list) and value and self.dice.random() < 0.9:
            place = self.dice.randrange(len(value))
            return [*value[:place], self.odd(value[place]), *value[place + 1 :]]
        return self.dice.choice(ODD)

    def bent(self, data: bytes, times: int) -> bytes:
        """Return bytes of which some are changed, cut out, put in or doubled."""
        found = bytearray(data)
        for _ in range(times):
            at, some = self.dice.randrange(len(found) + 1), self.dice.randrange(1, 9)
            found[at : at + self.dice.choice((0, 0, 1, some))] = self.dice.choice(
                (b"", self.dice.randbytes(some), bytes(found[at : at + 10 * some]))
            )
        return bytes(found)

    def _odd_object(self, value: dict[str, Any]) -> dict[str, Any]:
        key = self.dice.choice([*value])
        match self.dice.randrange(8):
            case 0:
                return {name: inner for name, inner in value.items() if name != key}
            case 1:
                return {**value, self.dice.choice(("more", "", "jsonrpc", "session_id", "_meta")): self.odd(None)}
        return {**value, key: self.odd(value[key])}
