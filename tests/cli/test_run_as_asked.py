"""`asynclock run` does what was asked, says what it waits for, and never shows a traceback."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asynclock.testing.plugin import StartServers
from tests import patient, unmeasured

from .conftest import ASYNCLOCK, PATIENCE, Program, alive, connected, environment, until


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("n" * 100_000, "true"), "4096 characters, this one has 100000"),
        (("n", "--ttl", "1e9", "true"), "11,574 days"),
        (("n", "--max-ttl", "1e9", "true"), "11,574 days"),
        (("n", "--ttl", "inf", "true"), "days"),
        (("n", "--ttl", "nan", "true"), "ttl must be finite"),
        (("n", "--ttl", "0.1", "true"), "ttl"),
        (("", "true"), "name"),
        (("n", "--node", "redis:/u:canary@127.0.0.1:1", "true"), "it must begin with redis://"),
        (("n", "--node", "redis://127.0.0.1/notadb", "true"), "number of a database"),
        (("n", "--no-wait", "--timeout", "3", "true"), "exclude each other"),
        (("n", "--shared", "--permits", "3", "true"), "exclude each other"),
        (("n", "--exclusive", "--shared", "true"), "exclude each other"),
        (("n", "--at-least", "1s", "--shared", "true"), "--at-least is for a lock that one"),
        (("n", "--at-least", "1s", "--exclusive", "true"), "--at-least is for a lock that one"),
        (("n", "--at-least", "1s", "--permits", "3", "true"), "--at-least is for a lock that one"),
        (("n", "--permits", "0", "true"), "permits"),
        (("n", "--timeout", "5 minutes", "true"), "'5 minutes' is no duration"),
    ],
)
async def test_refused_with_the_reason(
    arguments: tuple[str, ...], reason: str, bare: Program
) -> None:
    ended = bare.inside("run", *arguments, env={"ASYNCLOCK_NODES": "redis://127.0.0.1:1"})
    assert (ended.status, ended.out) == (64, "")
    assert reason in ended.err
    assert "canary" not in ended.err


# ---- standard files and the environment ----------------------------------------------------------
def test_a_message_that_cannot_be_written_does_not_change_the_status() -> None:
    """Python keeps what it could not write, tries again at its end, and would exit with 120."""
    env = environment()
    env.pop("PYTHONUNBUFFERED", None)
    line = f"{' '.join(ASYNCLOCK)} run --node redis://127.0.0.1:1 --timeout 0 j -- true 2>/dev/full"
    ended = subprocess.run(["sh", "-c", line], env=env, capture_output=True, timeout=PATIENCE)
    assert ended.returncode == 69, ended


async def test_closed_standard_files(program: Program) -> None:
    measured = environment(ASYNCLOCK_CONFIG=str(program.config))
    alone = unmeasured.environment(measured)  # it would take most of the time

    def run(
        command: str, redirection: str, env: dict[str, str] = alone
    ) -> subprocess.CompletedProcess[str]:
        line = f"{' '.join(ASYNCLOCK)} {command} {redirection}"
        return subprocess.run(
            ["sh", "-c", line], env=env, capture_output=True, text=True, timeout=PATIENCE
        )

    # The command finds closed what its caller has closed: no socket of ours, no /dev/null.
    ends = [
        (run("run j -- sh -c 'ls -l /proc/self/fd/0 /proc/self/fd/1; exit 3'", ">&- <&-"), 3),
        (run("run j -- sh -c 'exit 5'", "<&- >&- 2>&-", measured), 5),
        (run("run --bogus", "2>&-"), 64),
        (run("inspect j", ">&-"), 0),
        (run("inspect j", ">/dev/full"), 74),
        (run("run j -- sh -c 'sleep 0.2 & exit 6'", "2>/dev/full"), 6),
    ]
    for ended, status in ends:
        assert ended.returncode == status, ended
        assert "Traceback" not in ended.stderr
    assert "socket" not in ends[0][0].stderr
    assert "No space left" in ends[4][0].stderr


async def test_a_gone_reader_of_our_messages_ends_nothing(program: Program, tmp_path: Path) -> None:
    """`asynclock run … 2>&1 | head -1`: we can't tell what we wait for, nor what still runs."""
    file = tmp_path / "pid"
    script = f"sleep 1000 >/dev/null 2>&1 & echo $! > {file}"
    read, write = os.pipe()
    os.close(read)
    async with patient.connect_to(program.nodes) as locks:
        lease = await locks.lock("j").acquire()
        words = ("run", "j", "--wait-for", "command", "--", "sh", "-c", script)
        process = await program.start(*words, stderr=write)
        os.close(write)
        await connected(program.nodes[0], 2)  # we, and the program
        await lease.release()
        async with asyncio.timeout(PATIENCE):
            status = await process.wait()
    os.kill(int(file.read_text()), signal.SIGKILL)  # the command has run
    assert status == 0


async def test_the_locale_that_python_sets_is_not_handed_on(program: Program) -> None:
    kept = ("PATH", "COVERAGE_PROCESS_CONFIG")
    bare = {key: os.environ[key] for key in kept if key in os.environ}
    bare |= {"PYTHONPATH": environment()["PYTHONPATH"], "ASYNCLOCK_CONFIG": str(program.config)}
    for more in ({"LC_ALL": ""}, {"LC_CTYPE": "C.UTF-8"}):
        command = [*ASYNCLOCK, "run", "j", "--", sys.executable, "-c", WHAT_A_C_PROGRAM_GETS]
        found = subprocess.run(
            command, env={**bare, **more}, capture_output=True, text=True, timeout=PATIENCE
        )
        assert found.stdout == str("LC_CTYPE" in more) + "\n", found


WHAT_A_C_PROGRAM_GETS = "print(b'LC_CTYPE=' in open('/proc/self/environ', 'rb').read())"


# ---- signals -------------------------------------------------------------------------------------
async def test_ctrl_c_at_any_moment_of_the_start(program: Program) -> None:
    """Whatever is being imported, connected or started: no traceback, no key, no orphan."""
    program.use(program.nodes, ttl=60.0, max_ttl=60.0)
    # The measurement of coverage would take most of the time.
    env = unmeasured.environment(environment(ASYNCLOCK_CONFIG=str(program.config)))
    began = time.monotonic()
    await program.finish(await program.start("run", "warm", "--", "true", env=env))
    length = time.monotonic() - began

    async def interrupted(after: float) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", START, "run", "j", "--", "sleep", "1000"),
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        await process.stdout.readline()  # Python itself has started; from here on it is us
        await asyncio.sleep(after)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, said = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode()

    moments = [length * (number + random.random()) / 5 for number in range(5)]
    ends = [await interrupted(after) for after in moments]
    for status, said in ends:
        assert status in (-signal.SIGINT, 128 + signal.SIGINT), (status, said)
        assert not said, said
    for node in program.nodes:
        assert await node.command("EXISTS", "asynclock:j") == 0


START = f"""
import sys
sys.path[:0] = {sys.path!r}
from asynclock.cli import main
print(flush=True)
main()
"""


def test_ctrl_c_is_taken_care_of_before_anything_is_imported() -> None:
    script = (
        "import signal, sys; signals = set(sys.modules)\n"
        "import asynclock.cli; print(*sorted(set(sys.modules) - signals))"
    )
    # The measurement of coverage would import modules first.
    alone = unmeasured.environment(environment())
    found = subprocess.run(
        [sys.executable, "-c", script], env=alone, capture_output=True, text=True
    )
    assert found.stdout.split() == ["__future__", "asynclock", "asynclock.cli"]


# ---- what the lock is held for -------------------------------------------------------------------
async def test_it_waits_for_the_whole_group(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "goes-on"
    script = f"(while [ ! -e {file} ]; do sleep 0.02; done) & exit 4"
    process = await program.start("run", "j", "--", "sh", "-c", script)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = (await process.stderr.readline()).decode()
        assert "ended with status 4" in said
        assert "'j' is held until they end" in said
        assert await program.nodes[0].command("EXISTS", "asynclock:j") == 1
    finally:
        file.touch()
    assert (await program.finish(process)).status == 4
    assert await program.nodes[0].command("EXISTS", "asynclock:j") == 0


async def test_what_goes_on_outlives_a_slow_release(program: Program, tmp_path: Path) -> None:
    """The node doesn't answer the release before the lease would have ended."""
    node = program.nodes[0]
    program.use([node], ttl=3.0)
    file, end = tmp_path / "pid", tmp_path / "end"
    wait = f"while [ ! -e {end} ]; do sleep 0.01; done"
    script = f"sleep 1000 >/dev/null 2>&1 & echo $! > {file}; {wait}; exit 4"
    process = await program.start("run", "j", "--wait-for", "command", "--", "sh", "-c", script)
    await until(lambda: file.exists() and file.read_text(), "the command's start")
    await node.freeze()
    end.touch()
    began = time.monotonic()
    ended = await program.finish(process)
    await node.thaw()
    assert ended.status == 4
    assert time.monotonic() - began > 3.0, "it ended before the lease would have"
    left = int(file.read_text())
    assert alive(left)
    os.kill(left, signal.SIGKILL)


# ---- what it waits for ---------------------------------------------------------------------------
async def test_nodes_that_answer_and_may_not_vote_yet(program: Program) -> None:
    program.use(program.nodes, restart_guard=True, ttl=3600.0, max_ttl=3600.0)
    ended = await program("run", "j", "--timeout", "0", "--", "true")
    assert ended.status == 69
    told = r"too few of the nodes that answered may vote yet .*'j'; .* \d+\.\d s$"
    assert re.search(told, ended.err, re.MULTILINE), ended.err
    assert ended.err.count("may have forgotten locks; votes in") == 3


# ---- what is left behind -------------------------------------------------------------------------
async def test_a_failed_acquire_leaves_no_key(
    program: Program, asynclock_servers: StartServers
) -> None:
    """Granted, but not acknowledged by a replica: the program ends right after that."""
    (alone,) = await asynclock_servers(1)
    program.use([alone], acks=1, ttl=60.0, max_ttl=60.0, node_timeout=0.25)
    ended = await program.each(*[("run", f"j{n}", "--timeout", "0.5", "true") for n in range(3)])
    assert {one.status for one in ended} <= {64, 69}
    for number in range(3):
        assert await alone.command("EXISTS", f"asynclock:j{number}") == 0
