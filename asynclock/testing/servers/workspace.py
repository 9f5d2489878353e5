"""A folder for all servers of this process, and a watcher that survives this process.

Servers must not outlive the tests that started them, even if the tests are killed. On Linux
PR_SET_PDEATHSIG would end them, but already when the *thread* that started a server ends. So a
small shell in its own session holds the read end of a pipe. When this process ends in any way, the
pipe closes; the shell then kills every process group named in the folder and removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

_WATCHER = """
read -r _
for file in "$1"/*/pid; do
    [ -r "$file" ] && { read -r group <"$file"; kill -9 "-$group" 2>/dev/null; }
done
for file in "$1"/*/container; do
    [ -r "$file" ] && { read -r name <"$file"; docker rm --force "$name" >/dev/null 2>&1; }
done
command -p rm -rf "$1"  # found whatever PATH is
"""

_lock = threading.Lock()
_workspace: _Workspace | None = None


class _Workspace:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.count = 0
        # Short, because a Unix socket's path inside it must not exceed 104 to 108 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="alk-"))
        read_end, self._pipe = os.pipe()
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "asynclock-testing-watcher", str(self.root)],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        atexit.register(self.close)

    def close(self) -> None:
        """Let the watcher do its work now; in a forked child only drop our references."""
        os.close(self._pipe)
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):  # the watcher may have removed them already
                for file in self.root.glob("*/pid"):
                    with contextlib.suppress(OSError, ValueError):
                        os.killpg(int(file.read_text()), signal.SIGKILL)
            self._watcher.wait()


def new_folder(name: str) -> Path:
    """Return a new empty folder that is removed, at the latest, when this process ends.

    A file `pid` in the folder names a process group that is killed then, and a file `container`
    names a container.
    """
    global _workspace
    with _lock:
        if _workspace is None:
            _workspace = _Workspace()
        _workspace.count += 1
        folder = _workspace.root / f"{_workspace.count}-{name}"
    folder.mkdir()
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder made by `new_folder` and everything in it."""
    shutil.rmtree(folder, ignore_errors=True)


def _after_fork() -> None:
    # A forked child must not keep the write end: it would keep a dead parent's servers alive.
    global _workspace
    if _workspace is not None:
        atexit.unregister(_workspace.close)
        _workspace.close()
        _workspace._watcher.returncode = 0  # noqa: SLF001 - not our child: quiet
        _workspace = None


os.register_at_fork(after_in_child=_after_fork)
