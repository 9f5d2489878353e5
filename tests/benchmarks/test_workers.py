"""The scenarios with looping workers: their figures, and what they count as overtaken or split."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import bars_workers, judged, looping, votes
from benchmarks.__main__ import main
from benchmarks.adapters.asynclock_ import Asynclock
from benchmarks.kinds import judge
from benchmarks.matrix import SCENARIOS
from benchmarks.results import Case, Results
from benchmarks.systems import SYSTEMS
from benchmarks.worker import Worker

pytestmark = pytest.mark.timeout(180)  # worker processes on a busy machine start slowly

TINY = "--rounds=1 --seconds=0.5 --ttl=4 --max-ttl=4 --votes=3 --handovers=3 --here".split()


class Lonely:
    """A lock that only one worker ever gets."""

    def __init__(self) -> None:
        self.taken = False

    async def acquire(self, name: str) -> str:
        if self.taken:
            raise LookupError(name)
        self.taken = True
        return name

    async def release(self, lease: str) -> None:
        assert lease == "one"


async def test_a_worker_that_never_gets_the_name_has_waited_all_the_time() -> None:
    terms = looping.Terms(start=looping.time.monotonic(), seconds=0.05, body=0.01)
    (turns,), _ = await looping.work_all([Lonely()], terms, seed=1)
    assert len(turns.bodies) == 1
    assert turns.errors["LookupError"] > 0
    assert not turns.unfinished
    asked, began, left, _ = turns.bodies[0]
    assert asked <= began < left


def test_who_asked_later_and_began_earlier_has_overtaken() -> None:
    late, early = (0.5, 0.6, 0.7, 2, 0), (0.0, 0.8, 0.9, 3, 1)
    assert judged.overtaken([late, early], before=0.1) == 1
    assert judged.overtaken([late, early], before=0.6) == 0
    assert judged.overtaken([(0.0, 0.6, 0.7, 2, 0), (0.5, 0.8, 0.9, 3, 1)], before=0.1) == 0


def test_rounds_count_by_their_winners() -> None:
    won = [[True, False, True], [False, False, True]]
    sample = votes.outcome(won)
    assert sample["one_percent"] == pytest.approx(100 / 3)
    assert sample["nobody_percent"] == pytest.approx(100 / 3)
    assert sample["violations"] == 1


class Free(Asynclock):
    """A name that everybody gets, but for one that makes an error."""

    async def try_acquire(self, name: str) -> Any:
        if name == "error:1":
            raise OSError("no answer in time")
        return name

    async def release(self, lease: Any) -> None:
        """Nothing to release."""


@pytest.mark.parametrize(
    ("name", "kept", "won", "late"),
    [("error", 6, [True, False, True], 0), ("late", 4, [False, True, True], 1)],
    ids=["error", "late"],
)
async def test_in_a_race_an_error_is_a_defeat_and_who_is_late_does_not_ask(
    name: str, kept: int, won: list[bool], late: int
) -> None:
    worker = Worker("none")
    worker.adapter = Free([], 1.0, {})
    reply = await worker.race(name, [0.0, 0.0, 0.0], kept=kept)
    assert reply == {"won": won, "errors": int(name == "error"), "late": late}


def test_every_scenario_runs_with_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SYSTEMS["asynclock"].options, "node_timeout", 1.0)  # for a busy machine
    out = tmp_path / "out"
    names = "workers2 workers0 managers pauses permits elections phases quitter together".split()
    names.append("zones")
    chosen = "--system=asynclock --nodes=1 --tasks=4".split()
    assert main(["run", *names, *chosen, *TINY, f"--out={out}"]) == 0
    measured = Results.from_json(out.with_suffix(".json").read_text())
    assert measured.problems == {}

    def figure(name: str, metric: str) -> float:
        return measured.median(Case(name, 1, 4), "asynclock", metric)

    for name in names[:7]:
        assert figure(name, "leases_per_s") > 0
        assert figure(name, "errors") == 0
        assert figure(name, "unfinished") == 0
        assert figure(name, "scripts") > 0.5
        assert 0 < figure(name, "wait_p99_ms") <= figure(name, "longest_wait_ms")
    for name in ("workers2", "workers0", "managers", "elections", "together"):
        assert figure(name, "violations") == 0
    for name in ("together", "zones"):
        assert figure(name, "one_percent") == 100  # one node has no split votes
    assert figure("quitter", "late_ms") > 0


def test_the_quick_command_prints_a_line_for_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = "--processes 2 --body 0.002 0 --seconds 0.3 --kind write read --set ttl=2"
    assert main(["workers", *chosen.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("asynclock N=1 P=2" in line for line in lines) == 2
    assert sum("turns of each: write" in line for line in lines) == 2


def test_each_bar_has_its_cell() -> None:
    results = Results()
    figures: dict[str, Any] = {}
    for cell in bars_workers.CELLS:
        assert cell.case.scenario in SCENARIOS
        for system in cell.systems:
            results.add(cell.case, system, figures)
    assert {line["measured"] for line in judge(results, bars_workers.BARS)} == {"not measured"}
    measured = {cell.case for cell in bars_workers.CELLS}
    assert all(any(str(case) in bar.title for case in measured) for bar in bars_workers.BARS)
