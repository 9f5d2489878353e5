"""Records which lines of the library each test runs: `pytest -p tests.mutation.recording`.

It takes them from the coverage that is measured anyway, after each test, and gives them back in the
end. Contexts of coverage itself would be a row for each test and branch: hundreds of megabytes. A
program that a test starts writes a file of its own, whose name has the test's mark.
"""

import gzip
import hashlib
import json
import os
import sqlite3
import sys
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Any

import coverage
import pytest
from coverage.numbits import numbits_to_nums

from tests.mutation.mutant import ROOT

FOLDER = ROOT / ".nox"
REACH = FOLDER / "reach.json.gz"
PARTS = "reach-*.jsonl"
AT_IMPORT = ""
"""In place of a test's name, where lines run before all tests."""
OF_PROGRAMS = "COVERAGE_PROCESS_CONFIG"
"""The variable with the settings of coverage in programs that tests start."""


def pytest_configure(config: pytest.Config) -> None:
    """Start to record in a process that runs tests."""
    measured = coverage.Coverage.current()
    if measured is not None:
        recorder = Recorder(config, measured)
        config.pluginmanager.register(recorder, "reach")
        if recorder.joins and config.getoption("numprocesses", None):
            measured.stop()  # the workers run the tests, and this process hears of thousands


class Recorder:
    """What the tests of one process ran."""

    def __init__(self, config: pytest.Config, measured: coverage.Coverage) -> None:
        self._worker = getattr(config, "workerinput", {}).get("workerid", "")
        self.joins = not self._worker
        self._data: dict[str, set[int]] = measured._collector.data  # type: ignore[union-attr,assignment]
        self._of_programs = json.loads(b64decode(os.environ[OF_PROGRAMS]))
        self._all: dict[str, set[int]] = defaultdict(set)
        if self.joins:  # no worker has begun
            for old in FOLDER.glob(PARTS):
                old.unlink()
        self._part = (FOLDER / f"reach-{self._worker}.jsonl").open("a", encoding="utf-8")

    def pytest_collection_finish(self) -> None:
        """Note what ran when the tests, and so the library, were imported."""
        self._note(AT_IMPORT, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._drain()
        named = {**self._of_programs, "data_file": str(FOLDER / f"coverage.{mark(item.nodeid)}")}
        os.environ[OF_PROGRAMS] = b64encode(json.dumps(named).encode()).decode()
        began = time.monotonic()
        result = yield
        self._note(item.nodeid, round(time.monotonic() - began, 3))
        return result

    def _note(self, test: str, seconds: float) -> None:
        ran = {file: sorted(lines) for file, lines in self._drain().items()}
        print(json.dumps([test, seconds, ran]), file=self._part)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        self._drain()
        for file, lines in self._all.items():
            self._data.setdefault(file, set()).update(lines)
        self._part.close()
        result = yield
        if self.joins:  # the workers have ended
            join()
        return result

    def _drain(self) -> dict[str, set[int]]:
        """Take what was recorded since the last call."""
        found = {}
        for file, live in list(self._data.items()):
            if lines := live.copy():
                live.difference_update(lines)
                self._all[file] |= lines
                found[_relative(file)] = lines
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()  # which tells of each line once
        return found


def mark(test: str) -> str:
    """Return what the files of a test's programs have in their names."""
    return "t" + hashlib.md5(test.encode()).hexdigest()[:12]


def _relative(file: str) -> str:
    return os.path.relpath(file, ROOT)


def join() -> None:
    """Join what the workers and the programs of tests left, and write it for the mutants."""
    seconds: dict[str, float] = {}
    ran: dict[str, dict[str, Iterable[int]]] = {}
    for part in FOLDER.glob(PARTS):
        for line in part.read_text("utf-8").splitlines():
            test, seconds[test], ran[test] = json.loads(line)
        part.unlink()
    for test, file, lines in _of_programs({mark(test): test for test in ran}):
        ran[test][file] = {*ran[test].get(file, ()), *lines}
    sets: dict[tuple[str, tuple[int, ...]], int] = {}
    tests: list[Any] = []
    for test, files in sorted(ran.items()):
        keys = ((file, tuple(sorted(lines))) for file, lines in files.items())
        tests.append([test, seconds[test], [sets.setdefault(k, len(sets)) for k in keys]])
    with gzip.open(REACH, "wt", compresslevel=3) as out:
        json.dump({"sets": list(sets), "tests": tests}, out)


def _of_programs(tests: dict[str, str]) -> Iterator[tuple[str, str, set[int]]]:
    query = "select path, numbits from line_bits join file on file.id = file_id"
    for path in FOLDER.glob("coverage.t*"):
        test = tests.get(path.name.split(".")[1], "")
        ran: dict[str, set[int]] = defaultdict(set)
        # One query for all files: `coverage.CoverageData` connects anew for each of them.
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as data:
            for file, bits in data.execute(query) if test else ():
                ran[file].update(numbits_to_nums(bits))
        yield from ((test, _relative(file), lines) for file, lines in ran.items())
