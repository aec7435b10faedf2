"""The settings that clients may read: no secrets, no prompts and no paths."""

from collections.abc import Mapping
from typing import Any

import attrs

from warren.base.values import frozen
from warren.conversation.options import ModelOptions, given
from warren.settings.config import Config


@frozen
class Settings(ModelOptions):
    """The answer to `config/get`. Settings that do not apply are left out.

    Attributes:
        model: the model of sessions that name none.
        provider: the provider of sessions that name none; null if the model's name decides.
        stored: whether sessions outlive the process.
        compaction: the settings of compaction; null if it is off.
        limits: limits of the runtime; times in seconds.
        retry: the backoff of failed model calls.
        gateway: limits of a network client; times in seconds.
        stdio: limits of the client of a pipe; times in seconds.
    """

    model: str | None = None
    provider: str | None = None
    stored: bool | None = None
    compaction: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] | None = None
    retry: Mapping[str, Any] | None = None
    gateway: Mapping[str, Any] | None = None
    stdio: Mapping[str, Any] | None = None


def public_settings(
    runtime: Config | None, *, gateway: Mapping[str, Any] | None = None, stdio: Mapping[str, Any] | None = None
) -> Settings:
    """Return the public settings of a runtime and of the surface in front of it."""
    surface = Settings(gateway=gateway, stdio=stdio)
    if runtime is None:
        return surface
    return attrs.evolve(
        surface,
        model=runtime.model,
        provider=runtime.provider,
        **given(ModelOptions, runtime),
        stored=runtime.store is not None,
        compaction=None if runtime.compaction is None else attrs.asdict(runtime.compaction),
        limits=attrs.asdict(runtime.limits),
        retry=attrs.asdict(runtime.retry),
    )
