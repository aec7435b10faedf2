"""The shares of tenants and principals in what the clients of a process have open. No I/O."""

import pytest

from warren.base.errors import CapacityExceededError
from warren.settings.config import Limits
from warren.transport.rpc.shares import Shares

ANN, AMY, BOB = ("acme", "ann"), ("acme", "amy"), ("other", "bob")
LIMITS = Limits(tenant_share=0.5, principal_share=0.3)


def refused(shares: Shares, owner: tuple[str, str]) -> tuple[str | None, int, bool]:
    """Return the cause, the status and the retryability of a refusal."""
    with pytest.raises(CapacityExceededError) as caught, shares.taken(owner):
        pass
    assert caught.value.details["retry_after"] == 1
    return caught.value.cause, caught.value.numbers.http, caught.value.retryable


def test_each_has_its_share() -> None:
    """A principal less than its tenant, and that less than all; what is closed makes room."""
    shares = Shares("things", 10, LIMITS)
    shares.add(ANN, 3)
    assert refused(shares, ANN) == ("token_share", 429, True)
    shares.add(AMY, 2)
    assert refused(shares, AMY) == ("tenant_share", 429, True)
    shares.add(BOB, 5)
    assert refused(shares, ("third", "cid")) == ("process_share", 503, True)
    shares.add(ANN, -1)
    with shares.taken(AMY):
        assert (shares.of(AMY), shares.of_tenant("acme"), shares.total) == (3, 5, 10)
        assert refused(shares, ANN)[0] == "tenant_share"
    assert (shares.of(AMY), shares.of_tenant("acme"), shares.total) == (2, 4, 9)


def test_one_that_comes_instead_of_another_needs_no_room() -> None:
    """For a moment there are both."""
    shares = Shares("things", 10, LIMITS)
    shares.add(ANN, 3)
    with shares.taken(ANN, instead=True):
        assert shares.total == 4


def test_a_share_is_never_nothing() -> None:
    """Of whatever there may be few, each principal may have one."""
    shares = Shares("things", 2, Limits(tenant_share=0.1, principal_share=0.1))
    with shares.taken(ANN), shares.taken(BOB):
        assert refused(shares, ("third", "cid"))[0] == "process_share"


def test_clients_that_are_one_principal_have_all() -> None:
    """There is nobody to leave room for, and the refusal says that the server is full."""
    shares = Shares("things", 2, LIMITS, alone=lambda: True)
    with shares.taken(ANN), shares.taken(ANN):
        assert refused(shares, ANN)[0] == "process_share"


def test_a_limit_of_a_tenant_is_in_the_place_of_its_share() -> None:
    """It may be more than the share, or less."""
    shares = Shares("things", 10, LIMITS, tenants={"acme": 7, "other": 1})
    shares.add(ANN, 7)
    shares.add(BOB, 1)
    assert [refused(shares, each)[0] for each in (ANN, BOB)] == ["tenant_share"] * 2
