"""Each answer to an error as a whole: what a client gets, and what OpenAPI says about it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI

import asynclock
from asynclock.contrib._problems import UnusableNameError, problem_of, usable
from asynclock.contrib.fastapi import locked, setup
from asynclock.errors import AsyncLockError, ConfigurationError
from asynclock.fencing import FenceStamp, MemoryFenceStore, StaleFenceError, fence_headers
from asynclock.fencing.fastapi import require_fence


@pytest.mark.parametrize(
    ("error", "status", "kind", "title", "more"),
    [
        (
            asynclock.NotAcquiredError,
            *(409, "contended", "Another holder has this lock"),
            {"lock": "a", "retry_after": 1},
        ),
        (
            asynclock.QuorumUnavailableError,
            *(503, "unavailable", "Locks are not available at present"),
            {"lock": "a", "retry_after": 1},
        ),
        (StaleFenceError, 412, "stale-fence", "A newer holder was here first", {"lock": "a"}),
        (
            asynclock.LeaseLostError,
            *(500, "lease-lost", "The lock was lost before the work was done"),
            {"lock": "a"},
        ),
        (
            asynclock.AlreadyHeldError,
            *(500, "already-held", "The request holds this lock and would wait for itself"),
            {"lock": "a"},
        ),
        (UnusableNameError, 400, "unusable-name", "This cannot be the name of a lock", {}),
        (ConfigurationError, 500, "misconfigured", "Locks are misconfigured", {}),
    ],
)
def test_the_whole_answer_to_each_error(
    error: type[AsyncLockError], status: int, kind: str, title: str, more: dict[str, Any]
) -> None:
    found = problem_of(error("canary", name="a"))
    assert json.loads(found.body) == {
        "type": f"urn:asynclock:{kind}",
        "title": title,
        "status": status,
        **more,
    }
    pause = {"Retry-After": "1"} if "retry_after" in more else {}
    assert found.headers == {"Cache-Control": "no-store", **pause}
    assert (found.status, found.close_code) == (status, 4000 + status)


def test_an_outage_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each request of an outage logs it."""
    problem_of(asynclock.QuorumUnavailableError("no nodes", name="a"))
    (record,) = caplog.records
    assert record.exc_info is None


def described(status: int, kind: str, phrase: str) -> dict[str, Any]:
    """Return what OpenAPI should say of an answer."""
    properties = {
        "type": {"type": "string", "const": f"urn:asynclock:{kind}"},
        "title": {"type": "string"},
        "status": {"type": "integer", "const": status},
        "lock": {"type": "string", "description": "The name of the lock."},
        "retry_after": {"type": "integer", "description": "Seconds."},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["type", "title", "status"],
    }
    return {
        "description": f"{phrase}: urn:asynclock:{kind}",
        "content": {"application/problem+json": {"schema": schema}},
        "headers": {
            "Retry-After": {
                "description": "Seconds to wait before another try.",
                "schema": {"type": "integer"},
            }
        },
    }


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
@pytest.mark.parametrize(("status", "phrase"), [(409, "Conflict"), (423, "Locked")])
def test_openapi_describes_the_answers_of_each_method_as_a_whole(status: Any, phrase: str) -> None:
    app = FastAPI()
    setup(app, "memory://", contended=status)

    @app.api_route("/orders/{order_id}", methods=["GET", "PUT", "DELETE"])
    @locked("orders:{order_id}")
    async def order(order_id: int) -> None: ...

    operations = app.openapi()["paths"]["/orders/{order_id}"]
    assert set(operations) == {"get", "put", "delete"}
    for operation in operations.values():
        answers = operation["responses"]
        assert answers[str(status)] == described(status, "contended", phrase)
        assert answers["503"] == described(503, "unavailable", "Service Unavailable")


def test_a_mistake_in_a_name_is_ours_and_a_value_that_makes_no_name_is_the_clients() -> None:
    """The first is logged for the operator, the second is not."""
    locks = asynclock.connect("memory://")
    with pytest.raises(ConfigurationError) as caught:
        usable(42, locks)
    assert problem_of(caught.value).status == 500
    with pytest.raises(UnusableNameError) as unusable:
        usable("a:#42", locks)
    assert problem_of(unusable.value).status == 400
    assert usable("orders:42", locks) == "orders:42"


async def test_a_refused_fence_is_a_problem_of_its_own_kind() -> None:
    """With its own status, and not wrapped in `detail` as the framework does."""
    app, store = FastAPI(), MemoryFenceStore()
    setup(app, "memory://")
    fence = Depends(require_fence(store, "orders:{order_id}"))

    @app.put("/orders/{order_id}", dependencies=[fence])
    async def put(order_id: int) -> None: ...

    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            newer, older = (fence_headers(FenceStamp("orders:42", n)) for n in (7, 6))
            assert (await client.put("/orders/42", headers=newer)).status_code == 200
            answers = [await client.put("/orders/42", headers=given) for given in (older, {})]
    assert [answer.status_code for answer in answers] == [412, 428]
    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code
