"""Makes the wall clock of a running server jump.

A small shared library (`clock_shift.c`, compiled once per process with the machine's C compiler) is
preloaded into the server and adds an offset to its wall clock. Keys expire, and TIME and
`uptime_in_seconds` jump, as after `date -s`. The monotonic clock stays unchanged. We don't use
libfaketime, because it deadlocks in servers that are linked with jemalloc, as most are.
"""

from __future__ import annotations

import functools
import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from asynclock.errors import ConfigurationError
from asynclock.testing.servers.workspace import new_folder

_SOURCE = Path(__file__).with_name("clock_shift.c")
_COMPILERS = ("cc", "gcc", "clang")


def why_no_clock_jumps() -> str | None:
    """Return None if clocks can jump here, otherwise the reason why not, in one sentence."""
    try:
        _compiler()
    except ConfigurationError as reason:
        return str(reason)
    return None


class ShiftedClock:
    """The wall clock of one server: true time plus `shift` seconds."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.shift: float = 0.0
        self.env: dict[str, str] = {
            "LD_PRELOAD": str(_library()),
            "ASYNCLOCK_CLOCK": str(self._file),
        }

    def jump(self, seconds: float) -> None:
        """Add `seconds` (negative: backward) to the shift, which the server sees soon."""
        self.shift += seconds
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
            memory[:] = struct.pack("=q", round(self.shift * 1e6))


def _compiler() -> str:
    if not sys.platform.startswith("linux"):
        raise ConfigurationError("clock jumps need Linux: a library is preloaded into the server")
    for name in _COMPILERS:
        if path := shutil.which(name):
            return path
    raise ConfigurationError(f"clock jumps need a C compiler on PATH ({', '.join(_COMPILERS)})")


@functools.cache
def _library() -> Path:
    compiler = _compiler()
    target = new_folder("clock") / "clock_shift.so"
    built = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if built.returncode:
        raise ConfigurationError(f"clock jumps: {compiler} failed: {built.stderr.strip()}")
    return target
