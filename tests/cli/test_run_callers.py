"""`asynclock run` under unusual callers: who ignores signals, passes files, or reaps no zombies."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ASYNCLOCK, PATIENCE, ROOT, Program, until

linux = pytest.mark.skipif(sys.platform != "linux", reason="zombies are looked up in /proc")


# ---- a caller that ignores the ends of processes -------------------------------------------------
@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])",
    ],
    ids=["ignored", "blocked"],
)
async def test_a_caller_that_does_not_hear_of_ends(program: Program, before: str) -> None:
    """The command starts with the default, as under `timeout`: it may want to hear of ends."""
    script = f"import os, signal, sys; {before}; os.execv(sys.executable, sys.argv[1:])"
    command = (
        "import signal, sys; ignored = signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL\n"
        "sys.exit(8 if ignored or signal.pthread_sigmask(signal.SIG_BLOCK, []) else 7)"
    )
    by = (sys.executable, "-c", script, *ASYNCLOCK)
    process = await program.start("run", "j", "--", sys.executable, "-c", command, by=by)
    ended = await program.finish(process)
    assert (ended.status, ended.err) == (7, "")


# ---- signals and the environment -----------------------------------------------------------------
TELLS = """
import os, signal, sys
names = ("HUP", "QUIT", "USR1", "USR2", "TSTP", "INT", "TERM")
def tell(number, _):
    # A handler that prints fails if it interrupts another print.
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(9)
for name in names:
    signal.signal(getattr(signal, "SIG" + name), tell)
own = os.getpgrp() == os.getpid()
print(own, os.environ["ASYNCLOCK_NAME"], os.environ["ASYNCLOCK_FENCE"] != "1", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("ignored", [False, True])
async def test_each_signal_to_us_is_one_to_the_command_unless_we_must_ignore_it(
    program: Program, ignored: bool
) -> None:
    """`nohup` has us ignore SIGHUP. And a job under a lock may run a command under another."""
    ignore = "trap '' HUP; " if ignored else ""
    outer = {f"ASYNCLOCK_{name}": "1" for name in ("NAME", "FENCE", "OWNER", "DEADLINE")}
    by = ("sh", "-c", f'{ignore}exec "$@"', "sh", *ASYNCLOCK)
    words = ("run", "j", "--", sys.executable, "-c", TELLS)
    process = await program.start(*words, by=by, env={**program.settings, **outer})
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"True j True\n"
        for name in ("HUP", "QUIT", "USR1", "USR2", "TSTP", "INT", "TERM"):
            process.send_signal(getattr(signal, f"SIG{name}"))
            if name != "HUP" or not ignored:
                assert await process.stdout.readline() == f"SIG{name}\n".encode()
    assert (await program.finish(process)).status == 9


# ---- descriptors ---------------------------------------------------------------------------------
@linux
async def test_the_command_has_the_descriptors_of_our_caller_and_no_other(program: Program) -> None:
    """`asynclock run j cat <(echo hello)` works; no socket or pipe of ours is passed on."""
    given, other = os.pipe()
    script = (
        "import os\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try: print(name, os.readlink(f'/proc/self/fd/{name}'))\n"
        "    except FileNotFoundError: pass  # it was for the list itself"
    )
    words = ("run", "j", "--", sys.executable, "-c", script)
    ended = await program.finish(await program.start(*words, pass_fds=[given]))
    pipe = f"pipe:[{os.fstat(given).st_ino}]"
    os.close(given)
    os.close(other)
    assert ended.status == 0, ended.err
    found = dict(line.split(" ", 1) for line in ended.out.splitlines())
    assert found.keys() == {"0", "1", "2", str(given)}, found
    assert found[str(given)] == pipe


async def test_a_command_whose_name_is_not_text(program: Program, tmp_path: Path) -> None:
    """The lock's label names it."""
    command = tmp_path / os.fsdecode(b"\xff\n")
    command.symlink_to("/bin/sh")
    ended = await program("run", "j", "--", str(command), "-c", "exit 7")
    assert (ended.status, ended.err) == (7, "")


# ---- zombies -------------------------------------------------------------------------------------
REAPS_NOTHING = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us
sys.exit(subprocess.Popen(sys.argv[1:]).wait())
"""


@linux
async def test_a_zombie_is_not_waited_for(program: Program) -> None:
    """The first process of a container may reap nothing."""
    by = (sys.executable, "-c", REAPS_NOTHING, *ASYNCLOCK)
    process = await program.start("run", "j", "sh", "-c", "(true &); sleep 0.3; exit 3", by=by)
    async with asyncio.timeout(PATIENCE / 2):
        ended = await program.finish(process)
    assert (ended.status, ended.err) == (3, "")
    assert await program.nodes[0].command("EXISTS", "asynclock:j") == 0


# ---- cron ----------------------------------------------------------------------------------------
async def test_the_pages_crontab_runs_the_job_on_one_host(program: Program, tmp_path: Path) -> None:
    """The second host is late: its cron begins when the job of the first has already ended."""
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    (line,) = re.findall(r"^0 3 \* \* \* \S+/asynclock (.*report\.sh.*)$", page, re.MULTILINE)
    job, done = tmp_path / "report.sh", tmp_path / "done"
    job.write_text(f"#!/bin/sh\necho once >> {done}\nexit 7\n")
    job.chmod(0o755)
    # The test says when the sleep is over.
    words = shlex.split(line.replace("./report.sh", str(job)).replace("sleep 10", "read end"))
    first = await program.start(*words, stdin=subprocess.PIPE)
    await until(lambda: first.returncode is not None or done.exists())
    late = await program(*words)
    await asyncio.wait_for(first.communicate(b"\n"), PATIENCE)
    assert (late.status, first.returncode) == (75, 7)
    assert late.err.startswith("asynclock: ")
    assert done.read_text() == "once\n"
