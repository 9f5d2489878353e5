"""Makes each change in a copy of the checkout and runs its tests there.

One process imports pytest and what tests need, but nothing of asynclock, and forks for each run:
that saves a second apiece. Forked children run in folders of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

from tests.mutation.table import ROOT, Change

PRELOADED = (
    "redis.asyncio",
    "lupa",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "anyio",
    "aiohttp.web",
    "fastapi.testclient",
    "cryptography",
)
OPTIONS = (
    *("-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed", "1"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported already
)
TEST_SECONDS = 60
"""The limit of the whole suite: a test that waits for what never happens fails before that."""
RUN_SECONDS = 300.0
IGNORED = shutil.ignore_patterns(
    ".git", ".nox", ".bench", ".*_cache", ".hypothesis", ".venv", "_build", "build", "dist"
)
CAUGHT, SURVIVED, BROKEN, OVERDUE = "caught", "survived", "broken", "overdue"


@dataclass(frozen=True)
class Outcome:
    """How the tests of one change ended."""

    change: Change
    status: str
    seconds: float
    output: str


class Copy:
    """A copy of the checkout in which one change at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        shutil.copytree(ROOT, folder, ignore=IGNORED, symlinks=True)
        self._stamp = int(time.time())
        self._before = ""

    def write(self, change: Change) -> None:
        """Make the change."""
        self._before = (self.root / change.file).read_text("utf-8")
        self._put(change.file, self._before.replace(change.old, change.new))

    def undo(self, change: Change) -> None:
        """Take it back."""
        self._put(change.file, self._before)

    def _put(self, file: str, text: str) -> None:
        (self.root / file).write_text(text, "utf-8")
        # Python takes a compiled file for current by the seconds of this time and the size.
        self._stamp += 1
        os.utime(self.root / file, (self._stamp, self._stamp))


class Run:
    """A forked process that runs some tests in a copy."""

    def __init__(self, copy: Copy, tests: Sequence[str]) -> None:
        self.copy = copy
        self.began = time.monotonic()
        self._log = copy.root / "mutation.log"
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _play(copy.root, self._log, tests)

    @property
    def overdue(self) -> bool:
        """Whether it takes too long."""
        return time.monotonic() - self.began > RUN_SECONDS

    def kill(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def output(self) -> str:
        """What pytest said."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


def _play(root: Path, log: Path, tests: Sequence[str]) -> NoReturn:
    status = 3
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)
        sys.dont_write_bytecode = False
        sys.path[:] = [str(root), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        status = int(pytest.main([*OPTIONS, "--timeout", str(TEST_SECONDS), *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _hurry() -> None:
    # One failing example is enough: the smallest one costs ten times as long.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", phases=phases, deadline=None, database=None)
    hypothesis.settings.load_profile("mutation")


def _status(code: int, output: str) -> str:
    # A machine that is too busy lets any test time out: that catches nothing.
    if "from pytest-timeout" in output:
        return OVERDUE
    # 1: tests failed; pytest may stumble afterwards over what they left behind. Another status: a
    # module could not be imported, or no test was found.
    if code == 1 or re.search(r"^\d+ failed", output, re.MULTILINE):
        return CAUGHT
    return BROKEN if code else SURVIVED


class Runner:
    """Runs changes in `jobs` copies at once."""

    def __init__(self, folder: Path, jobs: int) -> None:
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        _hurry()
        self._idle = [Copy(folder / f"copy{number}") for number in range(jobs)]

    def baseline(self, changes: Iterable[Change]) -> None:
        """Run all tests of these without any change. Raises SystemExit if one fails."""
        tests = sorted({test for change in changes for test in change.tests})
        run = Run(self._idle[0], [one for one in tests if not _covered(one, tests)])
        _, status = os.waitpid(run.pid, 0)
        run.kill()
        if status:
            raise SystemExit(f"the tests fail without any change:\n{run.output}")

    def outcomes(self, changes: Iterable[Change]) -> Iterator[Outcome]:
        """Run the changes; outcomes come in the order in which they end."""
        waiting = list(reversed(list(changes)))
        running: dict[int, tuple[Run, Change]] = {}
        while waiting or running:
            while waiting and self._idle:
                copy, change = self._idle.pop(), waiting.pop()
                copy.write(change)
                run = Run(copy, change.tests)
                running[run.pid] = run, change
            for pid in list(running):
                run, change = running[pid]
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and not run.overdue:
                    continue
                run.kill()
                if not ended:
                    os.waitpid(pid, 0)
                del running[pid]
                said = run.output
                word = _status(os.waitstatus_to_exitcode(status), said) if ended else OVERDUE
                yield Outcome(change, word, time.monotonic() - run.began, said)
                run.copy.undo(change)
                self._idle.append(run.copy)
            time.sleep(0.02)


def _covered(test: str, tests: Iterable[str]) -> bool:
    return any(test != other and test.startswith((f"{other}::", f"{other}[")) for other in tests)


@contextlib.contextmanager
def runner(jobs: int) -> Iterator[Runner]:
    """Make a runner whose copies are deleted in the end."""
    with tempfile.TemporaryDirectory(prefix="asynclock-mutation-") as folder:
        yield Runner(Path(folder), jobs)
