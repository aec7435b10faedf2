"""What clients may know of how a runtime is set up. Secrets, prompts and paths are not in it."""

from collections.abc import Mapping
from typing import Any

import attrs

from warren.config import Config
from warren.options import ModelOptions, given


@attrs.frozen
class Settings(ModelOptions):
    """Of `config/get`: what clients may know; plain data without secrets. What does not apply is left out.

    Attributes:
        model: the model of sessions that name none.
        provider: its provider, where one is set.
        stored: whether sessions outlive the process.
        compaction: how contexts are compacted, where that is on.
        limits: bounds of the runtime; times in seconds.
        retry: how failed model calls are tried again.
        gateway: bounds of a network client; times in seconds.
        stdio: bounds of the client of a pipe; times in seconds.
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
    """Return what `config/get` shows of a runtime and of the surface in front of it."""
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
