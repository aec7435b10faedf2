"""The settings of a runtime refuse values of other types when they are made, not in the first turn that needs them."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from warren.base.fields import FieldValueError
from warren.base.tenant_limits import TenantLimits
from warren.models.catalog import ModelEntry
from warren.settings.config import Config, Limits, ModelServer, PostgresConfig, StoreConfig


@pytest.mark.parametrize("name", attrs.fields_dict(Config))
def test_another_type(name: str) -> None:
    """No setting takes a value of a type that none has, and the error names it."""
    for bad in (object(), [object()], {"a": object()}):
        settings: dict[str, Any] = {name: bad}
        with pytest.raises(FieldValueError) as caught:
            Config(**settings)
        assert caught.value.field.partition(".")[0].partition("[")[0] == name


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"store": "folder"}, "must be StoreConfig or PostgresConfig or None"),
        ({"compaction": True}, "must be CompactionConfig or None"),
        ({"limits": None}, "must be Limits"),
        ({"model": None}, "must be str"),
        ({"any_script": 1}, "must be bool"),
        ({"model_servers": ("one",)}, "must be tuple of ModelServer"),
        ({"tenants": {"a": None}}, "must be Mapping of str and TenantLimits"),
        ({"tenants": {7: TenantLimits()}}, "must be Mapping of str and TenantLimits"),
    ],
)
def test_near_misses(settings: dict[str, Any], problem: str) -> None:
    """The error says which type it would have to be."""
    with pytest.raises(FieldValueError) as caught:
        Config(**settings)
    assert (caught.value.field, caught.value.problem) == (next(iter(settings)), problem)


@pytest.mark.parametrize("seconds", [0, float("inf"), 1e12])
def test_a_call_waits_for_approval_until_a_date(seconds: float) -> None:
    """A time that no date can have would crash each turn that asks."""
    with pytest.raises(FieldValueError, match="approval_timeout"):
        Limits(approval_timeout=seconds)


def test_all_types() -> None:
    """Each alternative passes, and so do the elements of rows and mappings."""
    for store in (None, StoreConfig(Path("store")), PostgresConfig("postgresql://127.0.0.1/warren")):
        assert Config(store=store).store == store
    servers = (
        ModelServer(name="one", base_url="http://127.0.0.1:9"),
        ModelServer(name="two", base_url="http://127.0.0.1:9"),
    )
    assert Config(model_servers=servers).model_servers == servers
    as_list: Any = list(servers)
    assert Config(model_servers=as_list).model_servers == servers
    assert Config(models={"m": ModelEntry()}, tenants={"a": TenantLimits()}).models == {"m": ModelEntry()}
