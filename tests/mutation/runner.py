"""Plays each mutant in a copy of the checkout: tests run there until one fails.

One process imports pytest and what tests need, but nothing of asynclock, and forks for each mutant:
that saves a second apiece. Forked children run in folders of their own.
"""

import contextlib
import importlib
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

from tests.mutation.mutant import ROOT, Mutant
from tests.mutation.reach import Reach

PRELOADED = (
    *("redis.asyncio", "lupa", "pytest_asyncio.plugin", "pytest_timeout", "anyio"),
    *("aiohttp.web", "fastapi.testclient", "cryptography"),
)
OPTIONS = (
    *("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed", "1"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported already
)
TEST_SECONDS = 30
"""What a test may take: a mutant that makes it hang is caught."""
EACH, PATIENCE = 12.0, 4
"""Seconds that the tests of a mutant took when they were recorded, and after how many times as
long they count as hanging: such a mutant is caught."""
FIRST = 15
"""Number of tests that are collected first: most mutants are caught by one of these."""
MEMORY, WRITTEN = 8 << 30, 1 << 28
"""Bytes that a mutant may use, and write to a file: one that loops must not fill the machine."""
IGNORED = shutil.ignore_patterns(
    ".git", ".nox", ".bench", ".*_cache", ".hypothesis", ".venv", "_build", "build", "dist"
)
CAUGHT, HUNG, SURVIVED, UNREACHED = "caught", "hung", "survived", "unreached"
DOUBTFUL = "doubtful"
"""Caught by a test that fails without the mutant, too."""
ENDED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+::.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """How the tests of a mutant ended."""

    mutant: Mutant
    status: str
    seconds: float
    output: str = ""

    @property
    def caught(self) -> bool:
        """Whether a test failed, or hung."""
        return self.status in (CAUGHT, HUNG)

    @property
    def catcher(self) -> str:
        """The test that failed; empty if the library could not even be imported."""
        found = ENDED.search(self.output)
        return found[1] if found else ""


def chosen(reach: Reach, mutant: Mutant, left: float = EACH) -> list[str]:
    """Return the tests that are run for a mutant, the fastest first: those that fit the time."""
    found: list[str] = []
    for test in reach.tests(mutant):
        left -= reach.seconds[test]
        if found and left < 0:
            break
        found.append(test)
    return found


class Copy:
    """A copy of the checkout in which one mutant at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        shutil.copytree(ROOT, folder, ignore=IGNORED, symlinks=True)
        self._stamp = int(time.time())

    def put(self, file: str, source: bytes) -> None:
        """Write a file."""
        (self.root / file).write_bytes(source)
        # Python takes a compiled file for current by the seconds of this time and the size.
        self._stamp += 1
        os.utime(self.root / file, (self._stamp, self._stamp))


class Run:
    """A forked process that runs some tests in a copy."""

    def __init__(self, copy: Copy, mutant: Mutant | None, tests: Sequence[str]) -> None:
        self.copy, self.mutant = copy, mutant
        self.began = time.monotonic()
        self._log = copy.root / "mutation.log"
        if mutant:
            self._before = (copy.root / mutant.file).read_bytes()
            copy.put(mutant.file, mutant.apply(self._before))
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _play(copy.root, self._log, tests, *(["-x"] if mutant else []))

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def end(self) -> None:
        """End it with all that it started, and take the mutant back."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.mutant:
            self.copy.put(self.mutant.file, self._before)

    @property
    def output(self) -> str:
        """What pytest said."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


class Choice:
    """A plugin: of what pytest has collected, these tests run, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._rank = {test: number for number, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [one for one in items if one.nodeid in self._rank]
        items.sort(key=lambda one: self._rank[one.nodeid])


def _play(root: Path, log: Path, tests: Sequence[str], *more: str) -> NoReturn:
    status = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN, WRITTEN))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)
        sys.dont_write_bytecode = False
        sys.path[:] = [str(root), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        for part in filter(None, (tests[:FIRST], tests[FIRST:])):
            pid = os.fork()
            if not pid:
                functions = dict.fromkeys(test.partition("[")[0] for test in part)
                options = [*OPTIONS, *more, "--timeout", str(TEST_SECONDS), *functions]
                os._exit(int(pytest.main(options, plugins=[Choice(part)])))
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status:
                break
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if status >= 0 else 1)


class Runner:
    """Plays mutants in `jobs` copies at once."""

    def __init__(self, folder: Path, jobs: int, reach: Reach, each: float) -> None:
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        # One failing example is enough: the smallest one costs ten times as long.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutation", phases=phases, deadline=None, database=None
        )
        hypothesis.settings.load_profile("mutation")
        self._reach, self._each = reach, each
        self._idle = [Copy(folder / str(number)) for number in range(jobs)]

    def outcomes(self, mutants: Iterable[Mutant], seconds: float) -> Iterator[Outcome]:
        """Play mutants, and begin no more after so long; they come in the order of their ends."""
        begun, waiting = time.monotonic(), iter(mutants)
        running: dict[int, Run] = {}
        more = True
        while more or running:
            while more and self._idle:
                mutant = next(waiting, None)
                more = mutant is not None and time.monotonic() - begun < seconds
                if mutant is None or not more:
                    break
                if tests := chosen(self._reach, mutant, self._each):
                    run = Run(self._idle.pop(), mutant, tests)
                    running[run.pid] = run
                else:
                    yield Outcome(mutant, UNREACHED, 0.0)
            for pid, run in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and run.age < PATIENCE * self._each:
                    continue
                took = run.age
                run.end()
                if not ended:
                    os.waitpid(pid, 0)
                del running[pid]
                self._idle.append(run.copy)
                said = run.output
                word = _status(os.waitstatus_to_exitcode(status), said) if ended else HUNG
                assert run.mutant is not None
                yield Outcome(run.mutant, word, took, said)
            time.sleep(0.02)

    def doubted(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Run what caught mutants without any: what fails then has caught nothing."""
        tests = sorted({one.catcher for one in outcomes if one.catcher})
        run = Run(self._idle[0], None, tests)
        os.waitpid(run.pid, 0)
        run.end()
        failed = set(ENDED.findall(run.output))
        return [replace(one, status=DOUBTFUL) if one.catcher in failed else one for one in outcomes]


def _status(code: int, output: str) -> str:
    stale = code == pytest.ExitCode.USAGE_ERROR and "ERROR: not found" in output
    if stale or code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return UNREACHED  # the tests that were recorded have other names by now
    return CAUGHT if code else SURVIVED


@contextlib.contextmanager
def runner(jobs: int, reach: Reach, each: float = EACH) -> Iterator[Runner]:
    """Make a runner whose copies are deleted in the end."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        yield Runner(Path(folder), jobs, reach, each)
