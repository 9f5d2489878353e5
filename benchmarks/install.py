"""Makes the environments of the systems under ``.bench/``, and reports each failure."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .systems import ENVIRONMENTS, Environment, System

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".bench"
NODE = ROOT / "benchmarks" / "node"


def folder(environment: Environment) -> Path:
    return HOME / environment.name


def command(system: System, loop: str) -> list[str] | None:
    """Return the command that starts a worker, or None without an environment of today's pins."""
    environment = ENVIRONMENTS[system.environment]
    place = folder(environment)
    if not _is_ready(environment):
        return None
    if environment.kind == "node":
        return ["node", str(ROOT / "benchmarks" / "worker.mjs"), system.adapter, str(place)]
    return [str(place / "bin" / "python"), "-m", "benchmarks.worker", system.adapter, loop]


def how(systems: Iterable[System]) -> str:
    """Return the command that installs what these systems need."""
    return "nox -s bench-install -- " + " ".join(dict.fromkeys(s.environment for s in systems))


def command_here(system: System, loop: str) -> list[str]:
    """Return the command for a worker in this interpreter, for systems whose packages it has."""
    return [sys.executable, "-m", "benchmarks.worker", system.adapter, loop]


def install(names: Iterable[str], again: bool = False) -> dict[str, str]:
    """Return the result for each environment: "ready" or the reason of the failure."""
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    return {name: _one(ENVIRONMENTS[name], again) for name in names}


def _one(environment: Environment, again: bool) -> str:
    place = folder(environment)
    if _is_ready(environment) and not again:
        return "ready"
    shutil.rmtree(place, ignore_errors=True)
    try:
        if environment.kind == "node":
            _node(place)
        else:
            _python(environment, place)
    except (OSError, subprocess.CalledProcessError, LookupError) as error:
        details = getattr(error, "stderr", None) or str(error)
        return "not installed: " + " ".join(details.split())[-300:]
    (place / "ready").write_text(_pins(environment))
    return "ready"


def _is_ready(environment: Environment) -> bool:
    ready = folder(environment) / "ready"
    return ready.exists() and ready.read_text() == _pins(environment)


def _pins(environment: Environment) -> str:
    """Return what decides which versions are installed."""
    if environment.kind != "node":
        return "\n".join(environment.packages)
    return hashlib.sha256((NODE / "package-lock.json").read_bytes()).hexdigest()


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)


def _python(environment: Environment, place: Path) -> None:
    _run(_interpreter(environment.python), "-m", "venv", place)
    _run(place / "bin" / "python", "-m", "pip", "install", "--quiet", *environment.packages)


def _node(place: Path) -> None:
    place.mkdir(parents=True)
    if not shutil.which("npm"):
        raise LookupError("npm is not on PATH")
    for file in NODE.glob("*.json"):
        shutil.copy(file, place)
    _run("npm", "ci", "--no-audit", "--no-fund", cwd=place)


def _interpreter(version: str | None) -> str:
    """Return this Python, or the newest one on which an old package still runs."""
    if version is None or sys.version_info[:2] <= tuple(map(int, version.split("."))):
        return sys.executable
    for path in (shutil.which(f"python{version}"), *_pyenv(version)):
        # The command may be a shim that can't start Python, so try it.
        if path and _says_version(path, version):
            return path
    raise LookupError(f"needs Python {version}, which this machine lacks")


def _pyenv(version: str) -> list[str]:
    return [str(p) for p in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]


def _says_version(path: str, version: str) -> bool:
    ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version
