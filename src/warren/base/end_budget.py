"""The time for the end of a process, shared out among its phases."""

from typing import Final

from warren.base.values import frozen

INTERRUPTS: Final = (0.25, 4.0)
CONNECTIONS: Final = (0.08, 1.5)
FILES: Final = (0.08, 1.5)
SPARE: Final = (0.06, 0.5)
"""A share of the whole, and the seconds that are enough."""
CUT_OFF: Final = 0.2
"""The share of the time for interrupted turns that those have which were cut off."""


@frozen
class EndBudget:
    """When each phase of an orderly end has to be over: one budget, counted from the request to end.

    The phases follow each other, and none waits if it has nothing to do. Times are on the clock of the caller.

    Attributes:
        began: when the end was asked for.
        seconds: within which the process has to be gone.
    """

    began: float
    seconds: float

    @property
    def turns(self) -> float:
        """Until when running turns may finish by themselves."""
        return self.interrupts - self._share(INTERRUPTS)

    @property
    def cut_off(self) -> float:
        """Until when interrupted turns may end by themselves; the others are cut off then."""
        return self.interrupts - CUT_OFF * self._share(INTERRUPTS)

    @property
    def interrupts(self) -> float:
        """Until when all callers are answered."""
        return self.connections - self._share(CONNECTIONS)

    @property
    def connections(self) -> float:
        """Until when clients may read their last answers."""
        return self.last - self._share(FILES)

    @property
    def last(self) -> float:
        """Until when the files are closed, and the process is gone; a little before it would be killed."""
        return self.began + self.seconds - self._share(SPARE)

    def _share(self, of: tuple[float, float]) -> float:
        share, enough = of
        return min(share * self.seconds, enough)
