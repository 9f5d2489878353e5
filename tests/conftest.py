"""For all tests: the project's own plugin, and an error for unexpected skips."""

from __future__ import annotations  # pytest 8.2 has no TerminalReporter

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import LocalServer, plugin
from tests import patient

Connect = Callable[..., asynclock.LockManager]

# A test that does not run proves nothing. Under `--strict-skips` (CI) the session fails when a
# test was skipped for a reason that is not listed here; each line says why it may be.
ALLOWED_SKIPS = (
    # Eager tasks: the newer Pythons run that test.
    r"eager tasks came with Python 3\.12",
    # The child's loop does not know that it runs, so it waits for ever: the older Pythons run it.
    r"from Python 3\.14 on, asyncio does not let a forked child leave the event loop",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="fail when a test was skipped for a reason that tests/conftest.py does not list",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share servers run on one worker, unless `--dist` asks for another order."""
    if config.getoption("dist") != "load":
        return None
    from tests.scheduling import ByServers  # there may be no xdist

    return ByServers(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipGuard(config), "skip-guard")
    # An installed asynclock announces its plugin itself; a bare checkout does not.
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "asynclock")


def pytest_collection_finish() -> None:
    """Let the collector pass over all modules and tests: they take it a third of a second."""
    gc.freeze()


class SkipGuard:
    """Collects unexpected skips; under xdist the controller sees the workers' reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.strict = bool(config.getoption("--strict-skips")) and not hasattr(
            config, "workerinput"
        )
        self.unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.note(report.nodeid, report.longrepr)

    def note(self, nodeid: str, longrepr: object) -> None:
        reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
        if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
            self.unexpected.append(f"{nodeid}: {reason}")

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        if self.strict and self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.strict and self.unexpected:
            terminalreporter.section("skipped, but should have run", red=True)
            for line in sorted(set(self.unexpected)):
                terminalreporter.line(line)


@pytest_asyncio.fixture
async def connecting() -> AsyncIterator[Connect]:
    """`asynclock.connect`; what it made is closed at the end."""
    made: list[asynclock.LockManager] = []

    def make(*addresses: Any, **settings: Any) -> asynclock.LockManager:
        made.append(patient.connect(*addresses, **settings))
        return made[-1]

    yield make
    await asyncio.gather(*(locks.aclose() for locks in made))


@pytest.fixture
def urls(asynclock_nodes: list[LocalServer]) -> list[str]:
    return [node.url for node in asynclock_nodes]


@pytest.fixture(scope="session")
def topologies_end() -> Iterator[None]:
    """The topologies that tests shared end with the session."""
    from tests.contract.topology_faces import close

    yield
    close()
