"""The program itself: help, mistakes, settings."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asynclock.cli._sources import load, split
from asynclock.cli._text import clean
from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer

from .conftest import PATIENCE, Program, environment

COMMANDS = ("run", "inspect", "top", "doctor", "release", "bench", "demo")


async def test_help_names_every_command_and_has_no_colours(program: Program) -> None:
    ended = await program("--help")
    assert ended.status == 0
    assert all(command in ended.out for command in COMMANDS)
    assert "\x1b" not in ended.out


@pytest.mark.parametrize("command", [None, *COMMANDS, "nodes", "serve"])
def test_help_shows_flags_without_a_type(
    command: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    from asynclock.cli._app import run

    assert run([*filter(None, [command]), "-h"]) == 0
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert "-h" in shown
    assert not re.search(r"(?i)<bool>|\bboolean\b", shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from asynclock.cli._app import run

    assert run([command, "--help"]) == 0
    assert f"asynclock {command}" in capsys.readouterr().out.partition("Examples")[2]


@pytest.mark.parametrize("command", ["run", "doctor", "inspect", "top", "release", "serve"])
def test_each_help_names_the_node_timeout_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from asynclock.cli._app import run
    from asynclock.cli.look import held, serve

    looks = {"inspect": held, "top": held, "release": held, "serve": serve}
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out.partition("--node-timeout")[2]
    shown = re.search(r"Default:\s+([\d.]+)", text)
    assert shown is not None
    assert float(shown[1]) == (looks[command].NODE_TIMEOUT if command in looks else 0.25)


async def test_version_and_completion(program: Program) -> None:
    ended = await program("--version")
    assert (ended.status, ended.out.split()[0]) == (0, "asynclock")
    env = {"_ASYNCLOCK_COMPLETE": "complete_bash", "COMP_WORDS": "asynclock ins", "COMP_CWORD": "1"}
    assert "inspect" in (await program(env=env)).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("run",),
        ("run", "x", "--ttl", "soon", "--", "true"),
        ("run", "x", "--ttl", "-1", "--", "true"),
        ("run", "x", "--ttl", "0.1", "--node", "redis://h", "--", "true"),
        ("run", "", "--node", "redis://h", "--", "true"),
        ("run", "x", "--no-wait", "--timeout", "3", "--node", "redis://h", "--", "true"),
        ("inspect",),
        ("inspect", "x", "--all", "--node", "redis://h"),
        ("inspect", "x", "--node", "http://h"),
        ("inspect", "x", "--node", "redis://a", "--node", "redis://b"),
        ("inspect", "x", "--config", "/nowhere.toml"),
        ("release", "x", "--node", "redis://h"),
    ],
)
def test_a_mistake_is_one_clear_message(
    arguments: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from asynclock.cli._app import run

    monkeypatch.delenv("ASYNCLOCK_NODES", raising=False)
    monkeypatch.delenv("ASYNCLOCK_CONFIG", raising=False)
    assert run(list(arguments)) == 64
    said = capfd.readouterr().err
    assert said
    assert "Traceback" not in said


LOOKS = [
    ("x",),
    ("--all",),
    ("-a", "--json"),
    ("--prefix=p:", "--node", "redis://a", "x", "--node=redis://b", "--node-timeout", "2"),
    ("--config", "f.toml", "--", "--all"),
    ("--", "x"),
    ("-",),
    ("",),
]
UNREADABLE = [("--help",), ("x", "y"), ("--node",), ("--node-timeout", "soon"), ("-j",), ("--al",)]


@pytest.mark.parametrize("words", LOOKS)
def test_inspect_reads_its_arguments_as_typer_does(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer.main

    from asynclock.cli._app import run
    from asynclock.cli.look import held, inspect

    app = typer.Typer(add_completion=False)
    app.command("inspect")(inspect.inspect)
    options = {name for param in typer.main.get_command(app).params for name in param.opts}
    ours = held.COMMON.keys() | held.FLAGS.keys()
    assert {name for name in options if name[0] == "-"} - {"--help"} == ours
    seen: list[held.InspectArguments] = []
    monkeypatch.setattr(inspect, "show", seen.append)
    assert run(["inspect", *words]) == 0
    assert [held.parse(words)] == seen


@pytest.mark.parametrize("words", UNREADABLE)
def test_typer_explains_what_inspect_can_not_read(words: tuple[str, ...]) -> None:
    from asynclock.cli.look import held

    assert held.parse(words) is None


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
        "from asynclock.cli._start import start\n"
        "status = start(sys.argv[1:])\n"
        f"unneeded = {HEAVY | more!r} & set(sys.modules) - before\n"
        "assert status == 0 and not unneeded, (status, unneeded)"
    )
    env = environment(ASYNCLOCK_NODES=",".join(node.url for node in asynclock_nodes))
    process = await asyncio.create_subprocess_exec(*(sys.executable, "-c", script, *words), env=env)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


def test_without_the_extra() -> None:
    hide = "import sys; sys.modules['typer'] = None; from asynclock.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", hide], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "asynclock[cli]" in ended.stderr
    assert "Traceback" not in ended.stderr


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
async def test_bad_settings_are_told_before_anything_is_locked(
    program: Program, asynclock_nodes: list[LocalServer], line: str, said: str
) -> None:
    nodes = [node.url for node in asynclock_nodes]
    program.config.write_text(f"nodes = {nodes}\nrestart_guard = false\n{line}\n")
    ended = await program("run", "j", "--", "true")
    assert ended.status == 64
    assert re.search(said, ended.err)
    for node in asynclock_nodes:
        assert await node.command("DBSIZE") == 0


def test_nodes_between_commas() -> None:
    text = "redis://a:1, redis+sentinel://s1:2,s2:3/main ,redis+cluster://c1,c2,unix:///run/r.sock"
    assert split(text) == (
        "redis://a:1",
        "redis+sentinel://s1:2,s2:3/main",
        "redis+cluster://c1,c2",
        "unix:///run/r.sock",
    )


def test_where_settings_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.toml"
    file.write_text('nodes = ["redis://file"]\nprefix = "p:"\nttl = 5\n')
    monkeypatch.setenv("ASYNCLOCK_CONFIG", str(file))
    monkeypatch.delenv("ASYNCLOCK_NODES", raising=False)
    found = load(None, None)
    assert (found.nodes, found.prefix, found.options["ttl"]) == (("redis://file",), "p:", 5)
    monkeypatch.setenv("ASYNCLOCK_NODES", "redis://env")
    assert load(None, None).nodes == ("redis://env",)
    assert load(None, file).nodes == ("redis://file",)
    assert load(["redis://option"], file, prefix="q:").nodes == ("redis://option",)
    assert load(["redis://option"], file, prefix="q:").prefix == "q:"


@pytest.mark.parametrize(
    "text", ["nodes = 3", "node = []", "nodes = [1]", "= 3", "prefix = 3", "ttl = true"]
)
def test_bad_files(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"a\.toml"):
        load(None, file)


def test_what_a_terminal_would_obey() -> None:
    assert clean("a\x1b[31m\n\u202eb\ud800\u2028é日") == "a\\x1b[31m\\n\\u202eb\\ud800\\u2028é日"


async def test_a_reader_that_has_enough(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    program.use(asynclock_nodes)
    for node in asynclock_nodes:
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
