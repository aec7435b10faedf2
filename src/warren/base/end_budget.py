"""The time for the end of a process, shared out among its phases."""

from typing import Final

from warren.base.values import frozen

INTERRUPTS: Final = (0.25, 4.0)
CONNECTIONS: Final = (0.08, 1.5)
FILES: Final = (0.08, 1.5)
SPARE: Final = (0.06, 0.5)
"""The phases of an end: each takes this share of the whole time, or these seconds if they are fewer."""
CUT_OFF: Final = 0.2
"""The share of the interrupt phase that is left for turns that had to be cut off."""


@frozen
class EndBudget:
    """The deadlines of the phases of an orderly end: one budget, counted from the request to end.

    The phases follow each other, and none waits if it has nothing to do. Times are on the clock of the caller.

    Attributes:
        began: when the end was asked for.
        seconds: within which the process has to be gone.
    """

    began: float
    seconds: float

    @property
    def turns(self) -> float:
        """The end of the phase in which running turns may finish by themselves."""
        return self.interrupts - self._share(INTERRUPTS)

    @property
    def cut_off(self) -> float:
        """The moment at which interrupted turns that have not ended are cut off."""
        return self.interrupts - CUT_OFF * self._share(INTERRUPTS)

    @property
    def interrupts(self) -> float:
        """The moment by which all callers are answered."""
        return self.connections - self._share(CONNECTIONS)

    @property
    def connections(self) -> float:
        """The moment up to which clients may read their last answers."""
        return self.last - self._share(FILES)

    @property
    def last(self) -> float:
        """The moment by which the files are closed and the process is gone, a little before it would be killed."""
        return self.began + self.seconds - self._share(SPARE)

    def _share(self, of: tuple[float, float]) -> float:
        share, enough = of
        return min(share * self.seconds, enough)
