"""The program itself: help, mistakes, settings."""

import asyncio
import importlib.metadata
import os
import re
import signal
import sys
from typing import Any

import pytest

from asynclock.testing import LocalServer

from .conftest import PATIENCE, Here, Program, environment

COMMANDS = ("run", "inspect", "top", "doctor", "release", "bench", "demo", "nodes", "serve")


def test_help_names_every_command_and_has_no_colours(here: Here) -> None:
    ended = here("--help")
    assert ended.status == 0
    assert all(command in ended.out for command in COMMANDS)
    assert "\x1b" not in ended.out


@pytest.mark.parametrize(
    ("command", "timeout"),
    [
        *((command, "250ms") for command in ("run", "doctor")),
        *((command, "1s") for command in ("inspect", "top", "release", "nodes")),
        *((command, None) for command in ("bench", "demo", "serve")),
    ],
)
def test_each_help_has_an_example_and_flags(command: str, timeout: str | None, here: Here) -> None:
    ended = here(command, "-h")
    assert ended.status == 0
    assert "--help" in ended.out
    assert f"asynclock {command}" in ended.out.partition("Examples")[2]
    assert not re.search(r"(?i)<bool>|\bboolean\b", ended.out)
    option = ended.out.partition("--node-timeout")[2]
    shown = re.match(r"\s+TIME\s[^-]*Default:[\s│]+(\w+)", option)
    if timeout is not None:
        assert shown is not None
        assert shown[1] == timeout


async def test_version_and_completion(bare: Program) -> None:
    ended = await bare("--version")
    assert (ended.status, ended.out.split()[0]) == (0, "asynclock")
    env = {"_ASYNCLOCK_COMPLETE": "complete_bash", "COMP_WORDS": "asynclock ins", "COMP_CWORD": "1"}
    assert "inspect" in (await bare(env=env)).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("run",),
        ("run", "x", "--ttl", "soon", "--", "true"),
        ("run", "x", "--ttl", "-1", "--", "true"),
        ("run", "x", "--no-wait", "--timeout", "3", "--node", "redis://h", "--", "true"),
        ("inspect",),
        ("inspect", "x", "--all", "--node", "redis://h"),
        ("inspect", "x", "--node", "http://h"),
        ("inspect", "x", "--node", "redis://a", "--node", "redis://b"),
        ("inspect", "x", "--config", "/nowhere.toml"),
        ("release", "x", "--node", "redis://h"),
        ("doctor", "--max-ttl", "nan", "--node", "redis://h"),
        ("doctor", "--prefix", "\udcff", "--node", "redis://h"),
        # No names: an empty one, and a byte in the shell that isn't UTF-8.
        *(("release", one, "--force", "--yes", "--node", "memory://") for one in ("", "\udcff")),
        *((*one, "--node", "memory://") for one in (("release", "", "--ask"), ("inspect", ""))),
    ],
)
def test_a_mistake_is_one_clear_message(arguments: tuple[str, ...], here: Here) -> None:
    ended = here(*arguments)
    assert (ended.status, ended.out) == (64, "")
    assert ("prefix" in ended.err) is ("--prefix" in arguments)
    assert ended.err
    assert "Traceback" not in ended.err


MEANT = """
run NAME COMMAND: lock acquire exec with
inspect --all: list ls locks ps
inspect NAME: get show info who waiters queue
top: status watch monitor
release NAME: unlock free kill del
doctor: check health ping
serve: web dashboard
inspect: inspct
: frobnicate
"""


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        (word, meant or None)
        for meant, words in (line.split(": ") for line in MEANT[1:-1].split("\n"))
        for word in words.split()
    ],
)
def test_an_unknown_command_gets_a_suggestion(word: str, meant: str | None, here: Here) -> None:
    ended = here(word, "x")
    advice = f"did you mean `asynclock {meant}`? " if meant else ""
    assert (ended.status, ended.err) == (
        64,
        f"asynclock: there is no command {word!r}: {advice}`asynclock --help` lists all commands\n",
    )


# No command here needs any of these; redis-py is needed for uncommon addresses only.
HEAVY = {"anyio", "email", "importlib.metadata", "importlib.resources", "redis", "typer"}


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("inspect", "--all", "--json"), {"rich"}),
        (("inspect", "--all"), set()),
        (("run", "job", "--", "true"), {"rich", "tomllib", "zipfile"}),
    ],
)
async def test_a_command_imports_what_it_needs(
    words: tuple[str, ...], more: set[str], asynclock_nodes: list[LocalServer]
) -> None:
    """From the start to the end: what ends a program must import nothing large either."""
    script = (
        "import sys; before = set(sys.modules)\n"
        "from asynclock.cli import main\n"
        "try: main()\n"
        "except SystemExit as error: status = error.code\n"
        f"unneeded = {HEAVY | more!r} & set(sys.modules) - before\n"
        "assert status == 0 and not unneeded, (status, unneeded)"
    )
    env = environment(ASYNCLOCK_NODES=",".join(node.url for node in asynclock_nodes))
    process = await asyncio.create_subprocess_exec(*(sys.executable, "-c", script, *words), env=env)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r'label = "a\u0000b"', "label must not contain the character NUL"),
        ("ttl = " + "1" * 5000, "is not TOML"),
        ("turn = " + "[" * 3000 + "]" * 3000, "nested too deeply|is not TOML"),
        ("turn = " + "{a=" * 3000 + "1" + "}" * 3000, "nested too deeply|is not TOML"),
    ],
    ids=["label", "digits", "lists", "tables"],
)
async def test_mistakes_are_told_before_a_node_is_met(line: str, said: str, bare: Program) -> None:
    bare.config.write_text(f"nodes = ['redis://127.0.0.1:1']\n{line}\n")
    ended = bare.inside("run", "j", "--", "true")
    assert ended.status == 64
    assert re.search(said, ended.err)


async def test_a_reader_that_has_enough(program: Program) -> None:
    for node in program.nodes:
        script = "for i = 1, 3000 do redis.call('SET', 'asynclock:n' .. i, 'o', 'PX', 60000) end"
        await node.command("EVAL", script, 0)
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "asynclock", "inspect", "--all"),
        env=environment(ASYNCLOCK_CONFIG=str(program.config)),
        stdout=write,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write)
    os.close(read)
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode in (1, 128 + signal.SIGPIPE)  # click's answer, and ours
    assert said == b""


# ---- rare cases ----------------------------------------------------------------------------------
def fail(error: BaseException) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


SERVE = ("serve", "--node", "redis://localhost")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ModuleNotFoundError("no", name="rich.live"), 64, "pip install 'asynclock[cli]'"),
        (ModuleNotFoundError("no", name="uvicorn"), 64, "pip install 'asynclock[cli,dashboard]'"),
        (ModuleNotFoundError("no yaml", name="yaml.nodes"), None, ""),
        (KeyboardInterrupt(), 130, ""),
        (EOFError(), 130, ""),  # as the input of a prompt raises it
    ],
    ids=["cli", "dashboard", "another module", "Ctrl-C", "Ctrl-D"],
)
def test_how_the_program_ends(
    error: BaseException, status: int | None, said: str, here: Here
) -> None:
    """A missing module is an extra's only if the extra brings it."""
    here.patch.setattr(asyncio, "run", fail(error))
    if status is None:
        with pytest.raises(ModuleNotFoundError, match="no yaml"):
            here(*SERVE)
    else:
        ended = here(*SERVE)
        assert (ended.status, said in ended.err, ended.out) == (status, True, "")


def test_the_page_ends_when_its_server_does(here: Here) -> None:
    import uvicorn

    listening: list[Any] = []

    async def served(_: Any, sockets: Any) -> None:
        listening.extend(one.getsockname() for one in sockets)

    here.patch.setattr(uvicorn.Server, "serve", served)
    here.patch.setenv("ASYNCLOCK_TOKEN", "x" * 16)
    ended = here("serve", "--node", "memory://", "--port", "0")
    ((host, port),) = listening
    assert (ended.status, ended.out) == (0, f"http://{host}:{port}/#token={'x' * 16}\n")


def test_a_checkout_that_is_not_installed_has_no_version(here: Here) -> None:
    missing = importlib.metadata.PackageNotFoundError("asynclock")
    here.patch.setattr(importlib.metadata, "version", fail(missing))
    assert here("--version").out == "asynclock (not installed)\n"
