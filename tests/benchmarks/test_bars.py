"""Bars judge by their figures, and each has a case that is measured for it."""

from benchmarks import bars, kinds
from benchmarks.results import Results
from benchmarks.systems import FLOOR


def test_a_bar_without_a_figure_is_not_met() -> None:
    assert {line["met"] for line in kinds.judge(Results(), bars.BARS)} == {False}


def test_bars_judge_by_their_factor() -> None:
    results = Results()
    ours = {"cycles_per_s": 2000.0, "client_us": 61.0, "server_us": 16.0, "cold_trips": 3.2}
    results.add(bars.WIDE, "asynclock", ours)
    results.add(bars.WIDE, "pottery", {"cycles_per_s": 100.0})
    results.add(bars.WIDE, "aioredlock", {"cycles_per_s": 99.0})
    results.add(bars.ACKED, "asynclock", {"cycles_per_s": 1401.0})
    results.add(bars.SPREAD, "asynclock", {"server_us": 20.7})
    floor = {"cycles_per_s": 4001.0, "client_us": 28.0, "server_us": 10.0}
    results.add(bars.WIDE, FLOOR, floor)

    def verdicts(*judged: kinds.Bar) -> list[bool]:
        return [bar.judge(results)[1] for bar in judged]

    assert (
        verdicts(
            kinds.times_faster(bars.WIDE, ("pottery", "aioredlock"), 20),
            kinds.no_more(bars.WIDE, (FLOOR,), 1.6, "server_us"),
            kinds.client_cpu(bars.WIDE, 61),
            kinds.client_cpu(bars.WIDE, 25, factor=2.2),  # 2.18 times the floor's
            kinds.reported(bars.WIDE, "cold_trips", "round trips"),
            kinds.trips(bars.WIDE, "cold_trips", 3),
            kinds.of_case(bars.ACKED, bars.WIDE, 0.7),
            kinds.of_case(bars.SPREAD, bars.WIDE, 1.3, "server_us"),
        )
        == [True] * 8
    )
    assert (
        verdicts(
            kinds.times_faster(bars.WIDE, (FLOOR,), 0.5),
            kinds.no_more(bars.WIDE, (FLOOR,), 1.5, "server_us"),
            kinds.client_cpu(bars.WIDE, 60, factor=2.1),
            kinds.at_most(bars.WIDE, "client_us", 60, "µs"),
            kinds.reported(bars.WIDE, "node_bytes_per_name", "bytes"),
            kinds.trips(bars.WIDE, "cold_trips", 2),
            kinds.of_case(bars.ACKED, bars.WIDE, 0.71),
            kinds.of_case(bars.SPREAD, bars.WIDE, 1.29, "server_us"),
        )
        == [False] * 8
    )


def test_bars_use_only_cells_that_are_measured() -> None:
    """Some results made of its cells meet each bar: no bar needs a case that is never run."""
    results = Results()
    for cell in bars.CELLS:
        for system in cell.systems:
            good = 1e9 if system.startswith("asynclock") else 1.0
            least = ("client_us", "server_us", "lost", "violations", "late_ms", "cores_percent")
            sample = dict.fromkeys((*least, "waited_bodies", "client_growth_percent"), 0.0)
            sample |= {"cycles_per_s": good, "cycle_p50_ms": 1 / good, "least_share": 1.0}
            sample |= {"handover_p50_ms": 0.1, "handover_p99_ms": 0.1, "bytes_per_lease": 1.0}
            sample |= {"commands_per_s_and_node": 0.0, "wait_p50_ms": 1.0, "cycle_p99_ms": 1.0}
            sample |= {"healthy_wait_p50_ms": 1.0, "healthy_cycle_p99_ms": 1.0, "wait_p99_ms": 1.0}
            sample |= {f"{step}_trips": 1.0 for step in ("cold", "acquire", "release", "handover")}
            sample |= {"over_redis_ms": 1.0, "run_ms": 1.0, "node_bytes_per_name": 1.0}
            if system == FLOOR:
                sample |= {"server_us": 1.0, "client_us": 1.0}
            results.add(cell.case, system, sample)
    lines = kinds.judge(results, bars.BARS)
    assert [line for line in lines if not line["met"]] == []
    assert kinds.table(lines)[-1] == f"{len(lines)} of {len(lines)} bars are met"


def test_each_bar_belongs_to_one_case() -> None:
    cases = list(dict.fromkeys(cell.case for cell in bars.CELLS))
    found = [kinds.about(bars.BARS, [case]) for case in cases]
    assert sum(map(len, found)) == len(bars.BARS)
    one = kinds.about(bars.BARS, [bars.ONE])
    assert one
    assert all("cycle, N=5, 1, asyncio" in bar.title for bar in one)
