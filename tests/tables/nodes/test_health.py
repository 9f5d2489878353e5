"""What an answer tells of the health of a node: the error that the node shows afterwards."""

from typing import Any

import pytest

from asynclock._nodes.server import ServerNode
from asynclock._nodes.wire import Failure
from asynclock.events import Observers
from tests.tables.nodes.links import command

OOM, BUSY, MOVED, AGAIN, FORGOT, NOPERM = (
    Failure(f"{code} for a reason", code=code)
    for code in ("OOM", "BUSY", "MOVED", "TRYAGAIN", "NOSCRIPT", "NOPERM")
)
SILENCE, GRANT, REFUSAL, TOO_LATE = Failure("no answer"), [1, 5, b"", 7], [0, 9, b"x", 7], [-1, 7]
BATCH, RELEASES = "batch release:a acquire:b acquire:c", "batch release:a release:b"


@pytest.mark.parametrize(
    ("asked", "before", "answer", "after"),
    [
        *((op, None, OOM, OOM) for op in ("acquire me", "read 1", "prepare 1", "accept 1")),
        *((op, BUSY, GRANT, None) for op in ("acquire me", "read 1", "prepare 1", "accept 1")),
        *(("acquire me", BUSY, vote, None) for vote in (REFUSAL, TOO_LATE)),
        *((op, None, OOM, None) for op in ("release me", "raise me", "check me", "PING", RELEASES)),
        *((op, BUSY, GRANT, BUSY) for op in ("release me", "raise me", "check me", "PING")),
        ("acquire me", BUSY, OOM, OOM),
        ("acquire me", BUSY, SILENCE, BUSY),
        ("acquire me", None, NOPERM, NOPERM),
        ("acquire me", None, MOVED, MOVED),
        # each name counts; a release does not, nor a whole denial for the sake of one name
        (BATCH, BUSY, [0, [1, 5, 6], 7], None),
        (BATCH, None, [1, [1, 5, OOM], 7], OOM),
        (BATCH, BUSY, [1, [1, OOM, 5], 7], OOM),
        (BATCH, None, [1, [1, OOM, BUSY], 7], OOM),
        (BATCH, BUSY, [1, [OOM, 5, 6], 7], None),
        (BATCH, None, OOM, OOM),
        (BATCH, BUSY, SILENCE, BUSY),
        (BATCH, BUSY, [1, [1, SILENCE, SILENCE], 7], BUSY),
        (BATCH, None, NOPERM, None),
        (BATCH, BUSY, NOPERM, BUSY),
        (RELEASES, BUSY, [0, [1, 1], 7], BUSY),
        # a renewal ends an error of renewals, if it extended something
        ("extend me", None, OOM, OOM),
        ("extend me", BUSY, [b"1", 7], BUSY),
        ("extend me", "extend me", [b"01", 7], None),
        ("extend me", "extend me", [b"00", 7], BUSY),
        ("extend me", "extend me", SILENCE, BUSY),
        ("acquire me", "extend me", GRANT, None),
        # a server of a Cluster is not to blame for what is sent again
        *(("cluster acquire me", None, error, None) for error in (MOVED, AGAIN, FORGOT)),
        ("cluster acquire me", BUSY, MOVED, BUSY),
        ("cluster acquire me", None, OOM, OOM),
        (f"cluster {BATCH}", BUSY, [1, [1, MOVED, FORGOT], 7], BUSY),
        (f"cluster {BATCH}", BUSY, [1, [1, MOVED, 5], 7], None),
        (f"cluster {BATCH}", None, [1, [1, NOPERM, 5], 7], NOPERM),
    ],
)
def test_what_an_answer_tells_of_a_node(
    asked: str, before: Failure | str | None, answer: Any, after: Failure | None
) -> None:
    """`before`: the error of the last vote, or the operation that had it."""
    unused: Any = None
    settings: Any = type("Settings", (), {"max_ttl": 10.0, "node_timeout": 1.0, "record_key": ""})
    node = ServerNode("here", unused, settings, Observers())
    node.in_cluster = asked.startswith("cluster ")
    if before is not None:
        told = before if isinstance(before, str) else "acquire me"
        node.on_answer(command(told), BUSY)
    node.on_answer(command(asked.removeprefix("cluster ")), answer)
    assert node.lack is after
