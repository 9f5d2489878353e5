"""Replies that a server should not send, or that tell less than usual."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

import asynclock
from asynclock._engine.message import plain
from asynclock._nodes.acks import UNSUPPORTED, _Count, _unsupported
from asynclock._nodes.cluster.slots import read_redirect
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.link import Link
from asynclock._nodes.mark import Mark, leave_mark
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import GRANTED, Command
from tests.engine.virtual_nodes import Nodes, virtual
from tests.nodes.test_guards import Owner, Wire


async def test_a_reply_without_a_request_ends_the_connection() -> None:
    owner = Owner()
    link = Link(owner, 5.0)
    link.connection_made(Wire(link))
    link.data_received(b"+OK\r\n")
    await link.closed
    assert owner.end is not None
    assert owner.end.cause == "it sent a reply without a request"


@virtual
async def test_a_push_that_is_no_invalidation_changes_nothing(on: Nodes) -> None:
    async with on.locks.lock("a") as lease:
        for node in on.nodes:
            for client in node._clients:
                client.push([b"message", b"channel", b"asynclock:a"])
        assert await lease.check()
        assert {node.state for node in on.locks.nodes()} == {"up"}


@pytest.mark.parametrize(
    ("cause", "address"),
    [
        ("MOVED 3999 10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("ASK 3999 [::1]:7000", ("::1", 7000)),
        ("MOVED 3999 :7000", ("asked", 7000)),
        ("MOVED 3999 host:?", None),
        ("MOVED 3999", None),
        ("MOVED", None),
    ],
)
def test_the_address_of_a_redirect(cause: str, address: tuple[str, int] | None) -> None:
    assert read_redirect(cause, ("asked", 1)) == address


class Told:
    """A link whose server gives one reply."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def ask(self, _: Command) -> Any:
        return self.reply


async def test_a_primary_that_cannot_be_marked_is_known_as_such() -> None:
    """A server without the right, or without memory, may work; one without an answer does not."""

    async def left(reply: Any) -> Mark | None:
        return await leave_mark(Told(reply), "asynclock:#primary", "run.1")  # type: ignore[arg-type]

    assert await left(Failure("NOPERM no right", permanent=True, code="NOPERM")) is None
    assert await left(Failure("OOM command not allowed", code="OOM")) is None
    with pytest.raises(HandshakeError):
        await left(Failure("no answer within 1 s"))
    mark = await left([0, 1_000_000, b"-", b"", 3_500_000])
    assert mark is not None
    assert (mark.same, mark.age, mark.before) == (False, 2.5, "-")


def test_a_server_without_waitaof_needs_a_person() -> None:
    old = Failure("unknown command 'WAITAOF'", code="ERR")
    assert _unsupported(old) == Failure(
        "durable=True: unknown command 'WAITAOF'", permanent=True, code=UNSUPPORTED
    )
    busy = Failure("LOADING the data", code="LOADING")
    assert _unsupported(busy) is busy


@pytest.mark.parametrize(
    ("reply", "told"),
    [(b"role:master\r\nconnected_slaves:2\r\n", [2]), (b"role:slave\r\n", []), (Failure("no"), [])],
)
def test_replicas_are_counted_only_where_the_server_tells_them(reply: Any, told: list[int]) -> None:
    counted: list[int] = []

    class Counting:
        def counted(self, replicas: int) -> None:
            counted.append(replicas)

    _Count(Counting()).on_reply(0, reply)  # type: ignore[arg-type]
    assert counted == told


def test_a_reply_about_other_names_is_not_taken_for_ours() -> None:
    assert plain([0, [GRANTED, 5], 0], 1, 1) == [GRANTED, 5]
    assert plain([0, [GRANTED, 5, 6], 0], 1, 1) is None


def test_only_an_acquire_of_a_script_is_bounded() -> None:
    command = Command.plain("PING")
    assert command.not_after(5) is command


def test_a_cluster_of_redis_py_is_given_by_its_url() -> None:
    client = redis.asyncio.RedisCluster(host="localhost")
    with pytest.raises(asynclock.ConfigurationError, match="pass a Cluster by its URL"):
        asynclock.connect(client)  # type: ignore[arg-type]
