"""Runs scenarios in rounds that interleave the systems, so that load changes affect all alike."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from asynclock.testing import ServerReplyError

from .install import command, command_here, how
from .matrix import SCENARIOS
from .nodes import Nodes
from .remote import Remote, WorkerError
from .results import Case, Results
from .rounds import Round, Settings
from .systems import ENVIRONMENTS, SYSTEMS, System


@dataclass(frozen=True)
class Cell:
    """A case, the systems that take part, and settings that differ there."""

    case: Case
    systems: tuple[str, ...]
    changes: tuple[tuple[str, Any], ...] = ()


class Runner:
    """Measures cells one after another and collects what they say."""

    def __init__(
        self,
        nodes: Nodes,
        settings: Settings,
        say: Callable[[str], None],
        here: bool = False,
    ) -> None:
        self.nodes = nodes
        self.settings = settings
        self.say = say
        self.commands = command_here if here else command
        self.results = Results(settings=asdict(settings))
        self.results.machine["nodes"] = nodes.version
        self._pools: dict[tuple[str, str], list[Remote]] = defaultdict(list)
        self._rounds = 0

    async def run(self, cells: Sequence[Cell]) -> Results:
        try:
            begin = time.monotonic()
            for number, cell in enumerate(cells, 1):
                passed = time.monotonic() - begin
                self.say(f"[{number}/{len(cells)}, after {passed:.0f} s] {cell.case}")
                await self._cell(cell)
        finally:
            workers = [worker for pool in self._pools.values() for worker in pool]
            await asyncio.gather(*(worker.end() for worker in workers))
        return self.results

    async def _cell(self, cell: Cell) -> None:
        settings = replace(self.settings, **dict(cell.changes))
        able = [one for one in measured(cell) if self._installed(one, cell.case)]
        for turn in range(settings.rounds):
            shift = turn % max(len(able), 1)
            for system in able[shift:] + able[:shift]:
                try:
                    await self._round(cell.case, system, settings)
                except (WorkerError, ServerReplyError, OSError) as error:
                    self.results.problems[f"{system.name}: {cell.case}"] = str(error)
                    self.say(f"    {system.name}: {error}")
        for system in able:
            self._tell(cell.case, system)

    def _installed(self, system: System, case: Case) -> bool:
        if self.commands(system, case.loop) is None:
            self.results.problems[system.name] = f"not installed ({how([system])})"
            return False
        return True

    async def _round(self, case: Case, system: System, settings: Settings) -> None:
        nodes = self.nodes.first(case.nodes)
        if case.nodes > 1:  # a single node may vote at first contact however young it is
            await nodes.settled(settings.max_ttl)
        await nodes.flush()
        argv = self.commands(system, case.loop)
        assert argv is not None  # _installed has asked
        pool = self._pools[system.name, case.loop]
        self._rounds += 1
        round_ = Round(case, system, nodes, settings, argv, pool, f"bench{self._rounds}")
        try:
            async with round_.stack:
                sample = await SCENARIOS[case.scenario].run(round_)
        finally:
            if pool:
                self.results.versions[system.name] = pool[0].versions
            pool[:] = [worker for worker in pool if worker.alive]
        self.results.add(case, system.name, sample)

    def _tell(self, case: Case, system: System) -> None:
        metric = SCENARIOS[case.scenario].metric
        if spread := self.results.spread(case, system.name, metric):
            figure = f"{spread.median:,.4g} ({spread.low:,.4g} to {spread.high:,.4g})"
            self.say(f"    {system.name}: {metric} {figure}")


def measured(cell: Cell) -> list[System]:
    """Return the systems of a cell that can take part in its case."""
    return [SYSTEMS[name] for name in cell.systems if _fits(SYSTEMS[name], cell.case)]


def _fits(system: System, case: Case) -> bool:
    if case.nodes not in system.nodes or not SCENARIOS[case.scenario].measures(system):
        return False
    return case.loop == "asyncio" or ENVIRONMENTS[system.environment].kind != "node"


def missing(cells: Sequence[Cell]) -> list[System]:
    """Return the systems that some cells measure and that have no environment."""
    wanted = ((system, cell.case) for cell in cells for system in measured(cell))
    found = {system.name: system for system, case in wanted if not command(system, case.loop)}
    return list(found.values())


def matrix(
    scenarios: Sequence[str],
    systems: Sequence[str],
    nodes: Sequence[int],
    tasks: Sequence[int],
    loops: Sequence[str],
) -> list[Cell]:
    """Return the cells of the scenarios; an empty choice means all that each scenario names."""
    usual = tuple(name for name, system in SYSTEMS.items() if system.variant_of is None)
    return [
        Cell(Case(name, n, t, loop), tuple(systems) or SCENARIOS[name].systems or usual)
        for name in scenarios
        for loop in loops or SCENARIOS[name].loops
        for n in nodes or SCENARIOS[name].nodes
        if n >= SCENARIOS[name].least_nodes
        for t in tasks or SCENARIOS[name].tasks
    ]
