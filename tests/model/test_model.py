"""The explicit-state model, case by case: the protocol holds, each naive variant is caught.

The names stand here too, so that a case is a test of its own; `test_no_case_is_forgotten` keeps the
two lists the same. What each case models is told in README.md and in main.cpp.
"""

import fcntl
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The optimiser costs the short cases more time than it saves.
SHORT = ("-O1", "-DSHORT_ONLY")
ALL = ("-O2",)

HOLDS = "T1 T3 T7 L1 L2 P1 P2 P3 P4 R4 H3 M3 M11 V1 K1 K2 K6 C1 C2 D1 D3 F1 F2 F4 Z2 Z3".split(" ")
HOLDS += "F6 F9 F10 F11 F12 F13 S1 I1 I2 I3 I4 I5 I10 O1 O2 O3 O4 O5 O6 O7 O8 O16".split(" ")
# Random schedules of worlds that are too large to exhaust.
HOLDS_SAMPLED = "O12 O13 O14 O15 I6 I7 I8 I20".split(" ")
HOLDS_NIGHTLY = (
    "T2 T4 T5 T6 T8 T9 T10 A1 A2 A3 A4 P5 P6 P7 P8 P9 R5 R6 H1 H2 H7 M1 M2 M4 M5 M6 M7 M8 M9 M10 "
    "V2 V3 V4 V5 K3 K4 K5 K7 C3 D2 D4 F3 F5 F7 F8 F14 F15 F16 S2 S3 S4 I9 O9 O10 O11"
).split(" ")

# What the shortest counter-example violates, and how many steps it takes.
# U: a fence repeats; R: a fence does not rise; M: two holders; L: somebody is stuck; Z: a zombie;
# O: a waiter is overtaken; P, F: a reader or a writer is; S: a waiter spins; W: a free name, and
# all rivals give up.
CAUGHT = {
    "X1": ("U", 10),
    "X2": ("U", 14),
    "X3": ("U", 10),
    "X4": ("L", 0),
    "Q1": ("U", 18),
    "Q2": ("R", 16),
    "Q3": ("U", 11),
    "Q4": ("R", 13),
    "Q5": ("R", 17),
    "Q6": ("R", 15),
    "Q7": ("U", 14),
    "Q8": ("U", 14),
    "R1": ("U", 9),
    "R2": ("U", 10),
    "R3": ("U", 11),
    "H4": ("U", 12),
    "H5": ("U", 9),
    "H6": ("U", 13),
    "Y1": ("M", 12),
    "Y2": ("M", 12),
    "Y3": ("M", 12),
    "Y4": ("M", 9),
    "Y5": ("M", 11),
    "Y6": ("M", 9),
    "Y7": ("M", 11),
    "Y8": ("M", 16),
    "W1": ("M", 17),
    "W2": ("M", 17),
    "J1": ("M", 25),
    "J2": ("M", 17),
    "J3": ("M", 24),
    "J4": ("U", 16),
    "J5": ("M", 25),
    "J6": ("M", 18),
    "J7": ("M", 34),
    "N1": ("U", 12),
    "N2": ("U", 11),
    "N3": ("U", 12),
    "E1": ("M", 10),
    "E2": ("M", 11),
    "E3": ("M", 16),
    "E4": ("M", 12),
    "E5": ("M", 14),
    "E6": ("M", 13),
    "G1": ("M", 11),
    "G2": ("M", 11),
    "G3": ("M", 9),
    "G4": ("M", 11),
    "G5": ("M", 15),
    "G6": ("M", 14),
    "G7": ("M", 12),
    "G8": ("M", 18),
    "G9": ("M", 15),
    "G10": ("M", 16),
    "G11": ("M", 21),
    "G12": ("M", 17),
    "G13": ("M", 14),
    "G14": ("M", 13),
    "G15": ("M", 18),
    "G16": ("M", 19),
    "G17": ("M", 14),
    "G18": ("M", 14),
    "G19": ("M", 22),
    "G20": ("M", 18),
    "G21": ("M", 14),
    "G22": ("M", 16),
    "G23": ("M", 14),
    "G24": ("M", 14),
    "G25": ("M", 18),
    "U1": ("M", 10),
    "U2": ("M", 16),
    "U3": ("M", 8),
    "U4": ("M", 16),
    "U5": ("M", 15),
    "I11": ("M", 6),
    "I12": ("F", 8),
    "I13": ("P", 11),
    "I14": ("P", 11),
    "I15": ("F", 31),
    "I16": ("L", 5),
    "I17": ("L", 6),
    "I18": ("P", 22),
    "I19": ("P", 11),
    "U6": ("M", 16),
    "U7": ("M", 19),
    "Z1": ("Z", 4),
    "B1": ("O", 11),
    "B2": ("O", 31),
    "B3": ("O", 11),
    "B4": ("O", 32),
    "B5": ("L", 29),
    "B6": ("S", 39),
    "B7": ("S", 28),
    "B8": ("L", 7),
    "B9": ("O", 27),
    "B10": ("L", 11),
    "B11": ("L", 4),
    "B12": ("O", 24),
    "B13": ("L", 8),
    "B14": ("L", 16),
    "B15": ("L", 10),
    "B16": ("W", 14),
    "B17": ("W", 50),
}

# The first test of a run compiles, the others wait for it, on however busy a machine.
COMPILE_TIMEOUT = 240
pytestmark = pytest.mark.timeout(300)


Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Build:
    """Compiles the model, once for all workers of a run."""
    if shutil.which("g++") is None:
        pytest.skip("the model is C++: no g++ on PATH")
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # xdist: the workers' folders have one parent
        folder = folder.parent

    def build(*options: str) -> Path:
        binary = folder / "-".join(["model", *(option.strip("-") for option in options)])
        with binary.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not binary.exists():
                made = binary.with_suffix(".new")
                warn = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
                command = ["g++", *warn, *options, "-o", str(made), str(HERE / "main.cpp")]
                subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT)
                made.rename(binary)
        return binary

    return build


@pytest.fixture(scope="session")
def checker(build: Build) -> Path:
    """The compiled model, short cases only."""
    return build(*SHORT)


def run(checker: Path, *arguments: str) -> str:
    done = subprocess.run([checker, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"unexpected outcome:\n{done.stdout}{done.stderr}"
    print(done.stdout)
    return done.stdout


@pytest.mark.parametrize("name", HOLDS)
def test_protocol_holds_in_every_reachable_state(checker: Path, name: str) -> None:
    assert re.match(rf"{name} +holds +expected .* exhausted ", run(checker, name))


@pytest.mark.parametrize("name", HOLDS_SAMPLED)
def test_protocol_holds_in_random_schedules(checker: Path, name: str) -> None:
    assert re.match(rf"{name} +holds +expected .* sampled ", run(checker, name))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HOLDS_NIGHTLY)
def test_protocol_holds_in_every_reachable_state_of_large_cases(build: Build, name: str) -> None:
    assert re.match(rf"{name} +holds +expected .* exhausted ", run(build(*ALL), name))


@pytest.mark.parametrize("name", CAUGHT)
def test_naive_variant_is_caught_with_its_counter_example(checker: Path, name: str) -> None:
    violated, steps = CAUGHT[name]
    shown = run(checker, name)
    assert re.match(rf"{name} +caught +expected ", shown)
    assert f"violated {violated}: " in shown
    assert len(re.findall(r"^ {4}[ \d]\d \S", shown, re.MULTILINE)) == steps


def test_no_case_is_forgotten(checker: Path) -> None:
    listed = [line.split() for line in run(checker, "--list").splitlines()]
    expected = [
        *([name, "quick", "holds"] for name in HOLDS + HOLDS_SAMPLED),
        *([name, "nightly", "holds"] for name in HOLDS_NIGHTLY),
        *([name, "quick", "caught"] for name in CAUGHT),
    ]
    assert sorted(listed) == sorted(expected)
