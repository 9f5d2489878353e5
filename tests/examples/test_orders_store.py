"""The store of `examples/fastapi_orders`, in both databases it says it works with."""

from pathlib import Path
from urllib.parse import quote

import pytest

from examples.fastapi_orders.store import StaleError, Store, open_store
from tests.fencing.conftest import postgresql as postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return open_store(str(tmp_path / "orders.sqlite"))
    given = dict(word.split("=", 1) for word in request.getfixturevalue("postgresql").split())
    host = quote(given["host"], safe="")
    return open_store(f"postgresql://{given['user']}@{host}/{given['dbname']}")


@pytest.mark.timeout(180)
def test_a_stale_fence_sells_nothing(store: Store) -> None:
    store.create(2)
    assert not store.sold(1)
    store.sell(1, "anna", fence=2**52)
    with pytest.raises(StaleError):
        store.sell(1, "late", fence=2**52 - 1)
    assert store.sold(1)
    assert store.sales() == [(1, "anna")]
    store.sell(1, "ben", fence=2**52)  # the table itself allows doubles: the lock must not
    assert len(store.sales()) == 2
    store.create(2)
    assert store.sales() == []
