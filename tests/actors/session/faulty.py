"""Settings of a runtime whose store fails."""

from warren.settings.config import Config, Limits


def config(**limits: float) -> Config:
    """Return settings with some limits."""
    return Config(limits=Limits(**limits))  # type: ignore[arg-type]
