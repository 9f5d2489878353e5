"""`asynclock run`: the command runs only under the lock, and ends with it."""

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from functools import partial
from pathlib import Path

import pytest

from asynclock.testing import LocalServer
from tests import patient
from tests.docs.blocks import ROOT
from tests.waiting import becomes

from .conftest import PATIENCE, Program, alive, until

QUEUE = "asynclock:j:#queue"
BEAT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a", buffering=1) as file:
    while True:
        print(time.time(), os.getpid(), file=file)
        time.sleep(0.005)
"""


def beating(file: Path) -> tuple[str, ...]:
    """A command that says when it was last alive, and ignores SIGTERM."""
    return "--", sys.executable, "-c", BEAT, str(file)


def last_beat(file: Path) -> float:
    """When the command was last seen alive."""
    lines = file.read_text().splitlines() if file.exists() else []
    return float(lines[-1].split()[0]) if lines else 0.0


async def holds(process: Process, node: LocalServer) -> bool:
    """Whether this `run` has the lock."""
    owner = await node.command("GET", "asynclock:j")
    return owner is not None and f":{process.pid}:" in owner


async def queued(program: Program, *args: str, place: int = 1) -> Process:
    """Start a `run`, and return it once it waits for its lock."""
    process = await program.start("run", *args)
    for node in program.nodes:
        await becomes(partial(node.command, "ZCARD", QUEUE), place, timeout=PATIENCE)
    return process


def pid_of(file: Path) -> int:
    """Return the process id of the command."""
    return int(file.read_text().split(maxsplit=2)[1])


async def test_environment_status_and_a_free_lock_afterwards(program: Program) -> None:
    script = "env | grep ^ASYNCLOCK_; exit 7"
    ended = await program("run", "report", "--", "sh", "-c", script)
    assert ended.status == 7, ended.err
    env = dict(line.split("=", 1) for line in ended.out.splitlines())
    assert env["ASYNCLOCK_NAME"] == "report"
    assert int(env["ASYNCLOCK_FENCE"]) > 0
    assert len(env["ASYNCLOCK_OWNER"].partition(":")[0]) == 32
    assert abs(float(env["ASYNCLOCK_DEADLINE"]) - time.time()) < PATIENCE
    seen = await program.nodes[0].command("GET", "asynclock:report")
    assert seen is None


async def test_killed_run_leaves_no_child_and_frees_the_lock_within_its_ttl(
    program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    script = f"sleep 1000 & echo $$ $! > {file}.new; mv {file}.new {file}; wait"
    process = await program.start("run", "j", "--ttl", "3", "--", "sh", "-c", script)
    await until(file.exists, "the command's start")
    pids = [int(word) for word in file.read_text().split()]
    assert all(map(alive, pids))
    process.kill()
    await asyncio.wait_for(process.wait(), PATIENCE)  # 3.11: until its pipes are closed, too
    # It is no longer renewed, so it is free within the ttl.
    for node in program.nodes:
        assert -1 != await node.command("PTTL", "asynclock:j") <= 3000
    await until(lambda: not any(map(alive, pids)), "the end of the command and its child")
    async with patient.connect_to(program.nodes) as locks:
        lease = await locks.lock("j").acquire(timeout=PATIENCE)
        await lease.release()


async def test_lost_quorum_ends_the_command_in_time(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "beats"
    process = await program.start("run", "j", "--ttl", "4", *beating(file))
    await until(lambda: last_beat(file), "the command's start")
    await program.nodes[1].freeze()
    await program.nodes[2].kill()
    broken = time.time()
    ended = await program.finish(process)
    assert ended.status == 70, ended.err
    # Whatever was renewed was renewed before the quorum broke.
    assert last_beat(file) < broken + 4.0
    assert "can't be renewed: the command gets SIGTERM now, and SIGKILL 0." in ended.err
    assert re.search(r"\d: down: .*Connection refused", ended.err)
    assert re.search(r"lost.*: no quorum renewed it before its ttl ran out", ended.err)


@pytest.mark.parametrize(
    ("beside", "refused"),
    [
        ((("--permits", "2"), ("--permits", "2")), ("--permits", "2")),
        ((("--shared",), ("--shared",)), ("--exclusive",)),
        ((("--exclusive",),), ("--shared",)),
    ],
)
async def test_several_commands_share_a_name(
    program: Program, beside: tuple[tuple[str, ...], ...], refused: tuple[str, ...]
) -> None:
    script = "echo go; read line; echo done"
    running = [
        await program.start("run", "j", *options, "sh", "-c", script, stdin=subprocess.PIPE)
        for options in beside
    ]
    for process in running:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"go\n"
    one_more = await program("run", "j", "--no-wait", *refused, "true")
    assert one_more.status == 75
    assert all(f":{process.pid}:sh" in one_more.err for process in running)
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        assert (await program.finish(process)).status == 0
    assert (await program("run", "j", "--no-wait", *refused, "true")).status == 0


async def test_at_least_keeps_others_out_after_the_command_has_ended(program: Program) -> None:
    assert (await program("run", "--at-least", "1h", "my j", "true")).status == 0
    seen = await program("inspect", "my j")
    assert re.match(r"my j: rests, 5\dm \d+s left; last held by \S+:true\n", seen.out)
    late = await program("run", "--no-wait", "my j", "true")
    assert late.status == 75
    assert re.search(r"'my j' rests for 5\dm \d+s, last held by", late.err)
    waits = await program("run", "--timeout", "1s", "my j", "true")
    assert re.search(r"for 'my j', which rests for 5\dm \d+s, last held by \S+; `", waits.err)
    assert "`asynclock release 'my j' --force` frees it" in waits.err
    owner = re.search(r"[0-9a-f]{32}", seen.out)
    assert owner
    assert (await program("release", "my j", "--owner", owner[0], "--yes")).status == 0
    assert (await program("run", "--no-wait", "my j", "true")).status == 0


async def test_a_message_is_shown_and_the_holder_is_asked(program: Program) -> None:
    command = await program.start("run", "--message", "half done", "j", "--", "sleep", "60")
    while "half done" not in (await program("inspect", "j")).out:
        await asyncio.sleep(0.05)
    asked = await program("release", "j", "--ask")
    assert (asked.status, "the holder of 'j' was asked" in asked.err) == (0, True)
    command.terminate()
    await program.finish(command)
    free = await program("release", "j", "--ask", "--json")
    assert "nobody holds 'j'" in free.err
    assert json.loads(free.out) == {"version": 1, "asked": False}
    for mistake, text in (
        (("m", "--shared"), "--message and --shared exclude each other"),
        (("m" * 201,), "--message may have 200 characters, this one has 201"),
    ):
        wrong = await program("run", "--message", *mistake, "j", "true")
        assert (wrong.status, text in wrong.err) == (64, True)


async def test_max_hold_ends_the_command(program: Program) -> None:
    held = ("--ttl", "3s", "--max-hold", "3500ms")
    ended = await program("run", "j", *held, "sleep", str(PATIENCE))
    assert ended.status == 70, ended.err
    over = ": its max_hold is over"
    assert f"'j' can't be renewed{over}: the command gets SIGTERM now, and SIGKILL" in ended.err
    assert f"'j' was lost{over}\n" in ended.err


async def test_a_loss_that_only_the_nodes_know_ends_run_with_its_status_within_a_turn(
    program: Program, tmp_path: Path
) -> None:
    """While others wait and the turn isn't over, a release need not wait for the nodes."""
    program.use(program.nodes, turn=60.0)
    go_on = tmp_path / "go-on"
    command = ("sh", "-c", f"while [ ! -e {go_on} ]; do sleep 0.02; done")

    async with patient.connect_to(program.nodes) as locks:
        async with locks.lock("j"):
            process = await queued(program, "j", "--", *command)
            other = await queued(program, "j", "true", place=2)
        await until(lambda: holds(process, program.nodes[0]), "run has the lock")
        for node in program.nodes:
            await node.command("DEL", "asynclock:j")
        go_on.touch()
        assert (await program.finish(process)).status == 70
        assert (await program.finish(other)).status == 0


async def test_a_stopped_run_ends_its_command_in_time(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "beats"
    process = await program.start("run", "j", "--ttl", "4", *beating(file))
    await until(lambda: last_beat(file), "the command's start")
    process.send_signal(signal.SIGSTOP)
    stopped = time.time()
    try:
        await until(lambda: not alive(pid_of(file)), "the command's end")
        await until(lambda: time.time() > stopped + 4.5, "the end of the lease")
    finally:
        process.send_signal(signal.SIGCONT)
    assert last_beat(file) < stopped + 4.0
    assert (await program.finish(process)).status == 70


async def test_a_stopped_run_keeps_its_place_for_its_ticket_ttl(program: Program) -> None:
    program.use(program.nodes, ticket_ttl=5.0)
    async with patient.connect_to(program.nodes) as locks:
        async with locks.lock("j"):
            first = await queued(program, "j", "true")
            second = await queued(program, "j", "true", place=2)
            first.send_signal(signal.SIGSTOP)
            stopped, left = time.monotonic(), []
            for node in program.nodes:
                (ticket, _) = await node.command("ZRANGE", QUEUE, 0, -1)
                left.append(await node.command("PTTL", f"{QUEUE}:#{ticket}") / 1000)
        assert (await program.finish(second)).status == 0
    assert 2.0 < max(left) <= 5.0
    assert time.monotonic() - stopped > sorted(left)[1]
    first.send_signal(signal.SIGCONT)
    assert (await program.finish(first)).status == 0


async def test_the_service_for_systemd_runs_on_one_host(program: Program) -> None:
    unit = (ROOT / "deploy" / "systemd" / "report.service").read_text("utf-8")
    command = re.search(r"^ExecStart=\S+ (.*?)$", unit.replace("\\\n", ""), re.MULTILINE)
    assert command is not None
    assert "SuccessExitStatus=75" in unit
    text = command[1].replace("/usr/local/bin/report", 'sh -c "exit 3"')
    words = shlex.split(text.replace("$$", "$").replace("sleep 30", "sleep 3"))
    ends = sorted([one.status for one in await asyncio.gather(program(*words), program(*words))])
    assert ends == [3, 75]
