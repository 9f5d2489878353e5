"""200 buyers, each of whom wants a few of the orders, at both services in turn."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

EACH = 1
"""Number of orders that a buyer wants, besides the first one."""
TRIES = 40
EXPLAINED = {"urn:asynclock:unavailable", "urn:asynclock:lease-lost"}
"""The allowed problems in a 5xx: too few nodes, or a lost lease without a sale."""


@dataclass
class Tally:
    """The answers that the buyers got."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    open: int = 0
    """Number of requests that ended in neither "yours" nor "sold"."""


class Buyers:
    """All buyers: the load on the services."""

    def __init__(self, urls: Sequence[str], orders: int, halfway: Callable[[], None]) -> None:
        self._clients = [httpx.AsyncClient(base_url=url, timeout=60) for url in urls]
        self._orders = orders
        self._halfway = halfway
        self.tally = Tally()

    async def run(self, buyers: int) -> Tally:
        """All of them at once."""
        self._after = buyers * (EACH + 1) // 3
        try:
            async with asyncio.TaskGroup() as crowd:
                for number in range(buyers):
                    crowd.create_task(self._buyer(number))
        finally:
            for client in self._clients:
                await client.aclose()
        return self.tally

    async def _buyer(self, number: int) -> None:
        others = random.sample(range(self._orders), EACH)
        for order in [number % self._orders, *others]:
            await self._buy(number, order)

    async def _buy(self, number: int, order: int) -> None:
        for attempt in range(TRIES):
            client = self._clients[(number + order + attempt) % len(self._clients)]
            began = time.monotonic()
            answer = await client.post(f"/orders/{order}/buy", params={"buyer": number})
            self._note(answer, time.monotonic() - began)
            if answer.status_code in (201, 410):
                return
            # Held (409), stale (412) or an outage (503): the service says when to retry.
            pause = float(answer.headers.get("Retry-After", 1))
            await asyncio.sleep(random.uniform(0, min(pause, 1)))
        self.tally.open += 1

    def _note(self, answer: httpx.Response, seconds: float) -> None:
        tally = self.tally
        tally.statuses[answer.status_code] += 1
        tally.seconds.append(seconds)
        if answer.status_code >= 500:
            is_json = answer.headers["content-type"] == "application/problem+json"
            if not is_json or answer.json()["type"] not in EXPLAINED:
                tally.unexplained.append(f"{answer.status_code} {answer.text[:200]}")
        if len(tally.seconds) == self._after:
            self._halfway()
