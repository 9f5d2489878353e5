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

HOLDS = "T1 T3 T7 L1 L2 P1 P2 P3 P4 R4 H3 M3 M11 V1 K1 K2 K6 C1 C2 D1 D3 F1 F2 Z2 Z3".split(" ")
HOLDS += "AL1 DO1 DO2 DR1 DR2".split(" ")
HOLDS += "F9 F10 F11 F12 F13 S1 I1 I2 I3 I4 I5 I10 O1 O2 O3 O4 O5 O6 O7 O8 O16".split(" ")
# Random schedules of worlds that are too large to exhaust.
HOLDS_SAMPLED = "O12 O13 O14 O15 I6 I7 I8 I20".split(" ")
HOLDS_NIGHTLY = (
    "T2 T4 T5 T6 T8 T9 T10 A1 A2 A3 A4 P5 P6 P7 P8 P9 R5 R6 H1 H2 H7 M1 M2 M4 M5 M6 M7 M8 M9 M10 "
    "V2 V3 V4 V5 K3 K4 K5 K7 C3 D2 D4 F3 F14 F15 F16 S2 S3 S4 I9 O9 O10 O11 DO3"
).split(" ")

# What the shortest counter-example violates, and how many steps it takes.
# U: a fence repeats; R: a fence does not rise; M: two holders; L: somebody is stuck; Z: a zombie;
# X: a lease is resumed twice; O: a waiter is overtaken; P, F: a reader or a writer is; S: a waiter
# spins; W: a free name, and all rivals give up; E, F: a name rests too short or too long; G, H, I:
# see once.hpp.
_CAUGHT = """
X1:U10 X2:U14 X3:U10 X4:L7
Q1:U18 Q2:R16 Q3:U11 Q4:R13 Q5:R17 Q6:R15 Q7:U14 Q8:U14
R1:U9 R2:U10 R3:U11
H4:U12 H5:U9 H6:U13
Y1:M12 Y2:M12 Y3:M12 Y4:M9 Y5:M11 Y6:M9 Y7:M11 Y8:M16
W1:M17 W2:M17
J1:M25 J2:M17 J3:M24 J4:U16 J5:M25 J6:M18 J7:M34
N1:U12 N2:U11 N3:U12
E1:M10 E2:M11 E3:M16 E4:M12 E5:M14 E6:M13
G1:M11 G2:M11 G3:M9 G4:M11 G5:M15 G6:M14 G12:M17
G13:M14 G14:M13 G15:M18 G16:M19 G17:M14 G18:M14 G19:M22 G20:M18 G21:M14 G22:M16 G23:M14
G24:M14 G25:M18
U1:M10 U2:M16 U3:M8 U4:M16 U5:M15 U6:M16 U7:M19
I11:M6 I12:F8 I13:P11 I14:P11 I15:F31 I16:L5 I17:L6 I18:P22 I19:P11
Z1:Z4
AX1:E12 AX2:F9
DX1:M8 DX2:X10 DX3:R4 DX4:X11
OX1:H14 OX2:I12 OX3:I19 OX4:H23
B1:O11 B2:O31 B3:O11 B4:O32 B5:L29 B6:S39 B7:S28 B8:L7 B9:O27 B10:L11 B11:L4 B12:O24 B13:L8
B14:L16 B15:L10 B16:W14 B17:W50
"""
CAUGHT = {
    name: (what[0], int(what[1:])) for name, what in (one.split(":") for one in _CAUGHT.split())
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
