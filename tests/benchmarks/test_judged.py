"""Recorded histories are judged: two bodies at once, falling fences, and who waits for how long."""

from array import array
from pathlib import Path

from benchmarks import judged


def written(path: Path, *bodies: tuple[float, float, float, int]) -> Path:
    with path.open("wb") as file:
        array("d", [number for body in bodies for number in body]).tofile(file)
    return path


def test_bodies_of_all_processes_come_in_order(tmp_path: Path) -> None:
    fence = 2**53 - 1  # microseconds since 1970 need 51 bits: a double keeps them whole
    one = written(tmp_path / "0", (0.0, 1.0, 2.0, 7), (2.2, 5.0, 6.0, fence))
    two = written(tmp_path / "1", (0.0, 3.0, 4.0, 8))
    assert judged.recorded([one, two]) == [
        (0.0, 1.0, 2.0, 7, 0),
        (0.0, 3.0, 4.0, 8, 1),
        (2.2, 5.0, 6.0, fence, 0),
    ]


def test_violations_are_counted() -> None:
    clean = [(0.0, 1.0, 2.0, 1, 0), (0.0, 2.0, 3.0, 2, 1)]
    assert judged.violations(clean) == 0
    together = [(0.0, 1.0, 2.5, 1, 0), (0.0, 2.0, 3.0, 2, 1)]
    assert judged.violations(together) == 1
    falling = [(0.0, 1.0, 2.0, 2, 0), (1.5, 2.0, 3.0, 1, 1)]
    assert judged.violations(falling) == 1
    repeated = [(0.0, 1.0, 2.0, 2, 0), (0.5, 2.0, 3.0, 2, 1)]
    assert judged.violations(repeated) == 1


def test_the_longest_wait_is_told_in_bodies_of_others() -> None:
    order = [0, 0, 1, 1, 1, 0, 0, 0, 0]
    bodies = [(n, n, n + 1, n, process) for n, process in enumerate(order)]
    # Process 1 waited for two before its turn and for four after it; process 0 for three.
    assert judged.longest_wait(bodies, 2) == 4
    assert judged.longest_wait(bodies, 3) == len(order)  # process 2 never had it
