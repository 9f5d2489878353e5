"""What the nodes granted to one owner, and each way in which that changes.

Inside a process a grant may pass from one lease to the next (see local_queue.py); on the nodes its
owner stays the same. Other modules read a Grant but change it only through its methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .holder import Holder, LeaseReference
from .local_queue import LocalQueue
from .options import LeaseOptions
from .spec import LockSpec

FOREVER = float("inf")
_NOWHERE: dict[int, float] = {}
"""An empty, read-only dict that most grants share: no node forgot them, no call shortened them."""
_NONE = range(0)


class Grant:
    """One owner's key on the nodes, which renewal keeps alive."""

    __slots__ = (
        "alarm",
        "asked_since",
        "asked_until",
        "asking",
        "contended",
        "cut_short",
        "fence",
        "fences",
        "held_since",
        "hold_until",
        "lowered",
        "owner",
        "queue",
        "reference",
        "renew_until",
        "reserving",
        "restore_at",
        "restored",
        "since",
        "spec",
        "top",
        "ttl",
        "ttl_from",
        "valid_until",
        "voters",
    )

    spec: LockSpec
    owner: str
    fence: int
    ttl: float
    valid_until: float
    voters: tuple[int, ...]
    """The nodes whose grants won the vote."""
    asked_since: float
    """When the nodes were first asked for the lock."""
    queue: LocalQueue[Grant] | None
    since: float
    """When the nodes gave this process the name in the order of all who waited."""
    contended: bool
    """Whether other processes waited then."""
    held_since: float
    """When the present lease began."""
    alarm: float
    """When renewal checks this next; 0 once renewal has dropped it."""
    renew_until: float
    """The latest moment until which renewal keeps this valid; 0 for no renewal."""
    hold_until: float
    """The latest moment until which `extend` keeps this valid."""
    lowered: int
    """The number of the last request for a shorter ttl: earlier ones no longer prolong it."""
    ttl_from: int
    """The number of the request that `ttl` comes from."""
    asked_until: float
    """The latest end in any request that may still be answered."""
    asking: tuple[int, float] | None
    """The last `extend` call until it is answered: its number and its ttl."""
    cut_short: dict[int, float]
    """For each node that may still execute a request for a shorter ttl: that ttl."""
    reference: LeaseReference | None
    """A weak reference to the present lease; None between two leases. Only users keep it."""
    fences: range
    """The block of fences that is reserved for hand-overs."""
    top: int
    """The highest value to which we have raised the counter at a quorum."""
    reserving: asyncio.Future[None] | None
    """Done when the request for the next block has ended; None without such a request."""
    restored: dict[int, float]
    """For each node that forgot the key and took it back: when that was requested."""
    restore_at: float
    """When a node that forgot the key may take it back; a renewal is due then."""

    def __init__(
        self,
        spec: LockSpec,
        owner: str,
        fence: int,
        ttl: float,
        valid_until: float,
        voters: Iterable[int],
        asked_since: float,
        queue: LocalQueue[Grant] | None,
        since: float = 0.0,
        *,
        contended: bool = False,
    ) -> None:
        self.spec = spec
        self.owner = owner
        self.fence = fence
        self.ttl = ttl
        self.valid_until = valid_until
        self.voters = tuple(voters)
        self.asked_since = asked_since
        self.queue = queue
        self.since = since
        self.contended = contended
        self.held_since = 0.0
        self.alarm = 0.0
        self.renew_until = 0.0
        self.hold_until = FOREVER
        self.lowered = 0
        self.ttl_from = 0
        self.asked_until = valid_until
        self.asking = None
        self.cut_short = _NOWHERE
        self.reference = None
        self.fences = _NONE
        self.top = fence
        self.reserving = None
        self.restored = _NOWHERE
        self.restore_at = FOREVER

    @property
    def lease(self) -> Holder | None:
        """The present lease; None between two leases or if the lease was dropped."""
        return None if self.reference is None else self.reference()

    @property
    def wanted_ttl(self) -> float:
        """The ttl to renew with: what an `extend` is asking for, or else the present one."""
        return self.ttl if self.asking is None else self.asking[1]

    @property
    def dropped(self) -> bool:
        """Whether the program has dropped the lease without releasing it."""
        return self.reference is not None and self.reference() is None

    # leases

    def handed_to(
        self, lease: LeaseReference, fence: int, options: LeaseOptions, now: float
    ) -> None:
        """Begin a lease with this fence."""
        self.reference = lease
        self.fence = fence
        self.held_since = now
        self.hold_until = FOREVER if options.max_hold is None else now + options.max_hold
        self.renew_until = self.hold_until if options.renew else 0.0

    def vacated(self) -> None:
        """End the present lease; the next one may take the grant over."""
        self.reference = None

    def over(self) -> None:
        """End the grant and its lease: it is neither valid nor renewed any more."""
        self.reference = None
        self.valid_until = self.alarm = 0.0

    # renewal

    def check_at(self, at: float) -> None:
        """Set when renewal checks this next."""
        self.alarm = at

    def stop_renewing(self) -> None:
        """Let the grant end with its ttl."""
        self.renew_until = 0.0

    def end_sooner(self, by: float) -> None:
        """Shorten the validity, because our clock stood still for `by` seconds."""
        self.valid_until -= by

    def asked(self, until: float) -> None:
        """Note a request that may extend this until `until`."""
        self.asked_until = max(self.asked_until, until)

    def wants(self, number: int, ttl: float) -> tuple[int, float]:
        """Note an `extend` call to `ttl`; return what identifies it."""
        self.asking = asking = number, ttl
        return asking

    def answered(self, asking: tuple[int, float]) -> None:
        """Note that the nodes answered this `extend` call, unless there was a newer one."""
        if self.asking == asking:
            self.asking = None

    def shortened(self, until: float, number: int, ttl: float) -> None:
        """Count request `number` for a shorter ttl, which is about to be sent.

        Nodes may execute it and their replies may get lost, so it counts at once.
        """
        self.valid_until = min(self.valid_until, until)
        self.ttl, self.asked_until = ttl, until
        self.lowered = self.ttl_from = number

    def may_end_sooner(self, index: int, ttl: float) -> None:
        """Note that node `index` may still execute a request for this shorter ttl."""
        self.cut_short = {**self.cut_short, index: min(ttl, self.cut_short.get(index, ttl))}

    def extended(self, until: float, number: int, ttl: float) -> None:
        """Count an extension by a quorum, which request `number` asked for."""
        if number < self.lowered:
            return
        if until < self.hold_until:
            # A quorum may answer an older request after a newer one.
            if number >= self.ttl_from:
                self.ttl, self.ttl_from = ttl, number
        else:  # the last renewal: its ttl was the rest of the time
            until = max(self.hold_until, self.valid_until)
        self.valid_until = max(until, self.valid_until)

    # nodes that forgot the key

    def restore_by(self, at: float) -> None:
        """Note that a node which forgot the key may take it back at `at`."""
        self.restore_at = min(self.restore_at, at)

    def restore_asked(self) -> None:
        """Note that the nodes are being asked which of them forgot the key."""
        self.restore_at = FOREVER

    def doubt(self, index: int) -> None:
        """Stop counting node `index` as one whose grant won the vote."""
        self.voters = tuple(voter for voter in self.voters if voter != index)

    def put_back(self, index: int, sent: float, counter: int, *, voted: bool) -> None:
        """Note that node `index` took the key back; `voted`: its grant had won the vote."""
        self.restored = {**self.restored, index: sent}
        if voted:
            self.voters = (*self.voters, index)
        self.top = max(self.top, counter)

    # fences for hand-overs

    def take_fence(self) -> int:
        """Take the first reserved fence."""
        fence = self.fences[0]
        self.fences = self.fences[1:]
        return fence

    def reserve(self, count: int, done: asyncio.Future[None]) -> int:
        """Begin to reserve `count` fences; return the last one. `done` is the request's end."""
        self.top = max(self.top, self.fence) + count
        self.reserving = done
        return self.top

    def reserved(self, fences: range) -> None:
        """Replace the block of fences."""
        self.fences = fences

    def drop_fences(self) -> None:
        """Give the reserved fences up."""
        self.fences = _NONE

    def reservation_ended(self, done: asyncio.Future[None]) -> None:
        """Note the end of a request for fences, unless a newer one is under way."""
        if self.reserving is done:
            self.reserving = None
