"""A pseudo-terminal with a program in it, typed at and read like a person would."""

import asyncio
import errno
import fcntl
import os
import pty
import struct
import sys
import termios
import time

from .conftest import PATIENCE, Program, environment


class Session:
    """`asynclock …` (or `command`) as the leader of a session on a terminal of its own."""

    def __init__(
        self,
        program: Program,
        *args: str,
        command: tuple[str, ...] = (),
        size: tuple[int, int] = (40, 120),
    ) -> None:
        argv = command or (sys.executable, "-m", "asynclock", *args)
        env = environment(ASYNCLOCK_CONFIG=str(program.config), PS1="shell> ")
        self.screen = ""
        """All that was written, escape sequences included."""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        os.set_blocking(self._fd, False)
        self._status: int | None = None

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._fd, keys.encode())

    async def shows(self, text: str, after: int = 0) -> int:
        """Wait until `text` was written behind position `after`; return the position behind it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.screen[after:]:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.screen[after:]!r}"
            self._read()
            await asyncio.sleep(0.02)
        return self.screen.index(text, after) + len(text)

    async def end(self) -> int:
        """Wait for the program's end and return its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._status is None:
            assert time.monotonic() < deadline, f"it goes on: {self.screen[-2000:]!r}"
            self._read()
            self._look()
            await asyncio.sleep(0.02)
        self._read()
        assert "Traceback" not in self.screen, self.screen
        return self._status

    def close(self) -> None:
        """End what is left of it."""
        if self._status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _look(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._status = os.waitstatus_to_exitcode(status)

    def _read(self) -> None:
        try:
            while data := os.read(self._fd, 1 << 16):
                self.screen += data.decode("utf-8", "replace")
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:  # the other side is closed
                raise
