"""Which settings a command works with: those of its options, of the environment, of a file."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

import asynclock
from asynclock.cli import _app, _settings, run
from asynclock.cli import inspect as command
from asynclock.cli._app import run_program
from asynclock.cli._settings import _KEYS, Settings, load, read, split
from asynclock.errors import ConfigurationError
from tests.waiting import in_virtual_time

VALUES = {
    "prefix": '"p:"',
    "ttl": "0.5",
    "max_ttl": "30",
    "node_timeout": "0.05",
    "turn": "1.5",
    "ticket_ttl": "2.5",
    "fence_retention": "3600.5",
    "acks": '"majority"',
    "durable": "true",
    "label": '"web-1"',
    "restart_guard": '"disk"',
    "clock_guard": "false",
    "set_guard": "false",
    "strict": "true",
}
"""A value for each setting, where it may have several types the less usual one."""


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCLOCK_NODES", raising=False)
    monkeypatch.delenv("ASYNCLOCK_CONFIG", raising=False)


def written(folder: Path, text: str, name: str = "a.toml") -> Path:
    file = folder / name
    file.write_text(text, "utf-8")
    return file


# ---- what a file may say -------------------------------------------------------------------------
@pytest.mark.parametrize("key", VALUES)
def test_a_file_has_the_settings_of_connect(key: str, tmp_path: Path) -> None:
    found = read(written(tmp_path, f"{key} = {VALUES[key]}\n"))
    assert found.keys() == {key}
    assert key in inspect.signature(asynclock.connect).parameters


def test_no_setting_is_without_an_example() -> None:
    assert VALUES.keys() | {"nodes"} == _KEYS.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 3", "unknown setting 'colour'; known: nodes, prefix"),
        ("ttl = true", "ttl must be a whole number or a number"),
        ("durable = 1", "durable must be true or false"),
        ("acks = true", "acks must be a whole number or a text"),
        ('nodes = ["redis://a", 3]', "nodes must be a list of URLs"),
        ('label = "é\xff', "is not TOML"),
    ],
)
def test_what_a_file_may_not_say(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(None, written(tmp_path, text))


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    for file, said in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigurationError, match=said):
            load(None, file)


def test_a_file_is_utf_8_in_any_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "latin-1", raising=False)
    monkeypatch.setattr("_locale.nl_langinfo", lambda _: "latin-1", raising=False)
    assert read(written(tmp_path, 'label = "é日"'))["label"] == "é日"


# ---- which one counts ----------------------------------------------------------------------------
def test_options_beat_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'nodes = ["redis://file"]\nprefix = "f:"\nnode_timeout = 0.3\nttl = 5\n'
    file = written(tmp_path, text)
    monkeypatch.setenv("ASYNCLOCK_NODES", "redis://env")
    for config in (file, None):
        monkeypatch.setenv("ASYNCLOCK_CONFIG", "" if config else str(file))
        found = load(["redis://a,redis://b", "redis://c"], config, prefix="o:", node_timeout=0.7)
        assert found.nodes == ("redis://a", "redis://b", "redis://c")
        # The file's other settings hold all the same, also with other nodes than its own.
        assert found.options == {"prefix": "o:", "node_timeout": 0.7, "ttl": 5}
    assert load(None, None).nodes == ("redis://env",)
    assert load(None, None).prefix == "f:"
    assert load(None, file).nodes == ("redis://file",)


def test_a_file_that_is_named_stands_for_the_one_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = written(tmp_path, 'nodes = ["redis://named"]\n')
    other = written(tmp_path, 'nodes = ["redis://other"]\nttl = 7\n', "b.toml")
    monkeypatch.setenv("ASYNCLOCK_CONFIG", str(other))
    found = load(None, named)
    assert (found.nodes, found.options) == (("redis://named",), {})
    assert found.prefix == "asynclock:"


def test_a_file_may_leave_out_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "ttl = 7\n")
    with pytest.raises(ConfigurationError, match="no nodes"):
        load(None, file)
    monkeypatch.setenv("ASYNCLOCK_NODES", " redis://a , redis://b,")
    found = load(None, file)
    assert (found.nodes, found.options) == (("redis://a", "redis://b"), {"ttl": 7})


def test_what_stands_between_commas_is_no_node_if_it_is_empty() -> None:
    assert split(" , ") == ()
    assert split(",redis://a,") == ("redis://a",)
    assert split("redis+sentinel://a:1,b:2/main, redis://c") == (
        "redis+sentinel://a:1,b:2/main",
        "redis://c",
    )


@in_virtual_time
async def test_what_a_command_asks_for_beats_the_file() -> None:
    """`run --ttl 60` with `ttl = 10` in the file; None means that the option was not given."""
    options = {"ttl": 10.0, "max_ttl": 60.0, "label": "file"}
    settings = Settings(("memory://",), options)
    for more, ttl, label in (
        ({"ttl": 60.0, "label": None}, 60.0, "file"),
        ({"ttl": None, "label": "option"}, 10.0, "option"),
    ):
        given: dict[str, Any] = more
        async with settings.connect(**given) as locks, locks.lock("j") as lease:
            assert lease.ttl == ttl
            assert (await locks.inspect("j")).holder == label


# ---- the arguments of `inspect` ------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        ("x",),
        ("--all",),
        ("-a", "--json"),
        ("--prefix=p:", "--node", "redis://a", "x", "--node=redis://b", "--node-timeout", "2"),
        ("--config", "f.toml", "--", "--all"),
        ("--", "x"),
        ("-",),
        ("",),
    ],
)
def test_inspect_reads_its_arguments_as_typer_does(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[command.InspectArguments] = []
    monkeypatch.setattr(command, "show", seen.append)
    assert run_program(["inspect", *words]) == 0
    assert [command.parse(words)] == seen


def test_each_command_is_in_its_module() -> None:
    for name, module in _app.COMMANDS.items():
        assert callable(getattr(importlib.import_module(module, _app.__package__), name))


@pytest.mark.parametrize(
    ("typed", "ours"),
    [(_app.inspect, {*_settings.COMMON, *command.FLAGS}), (_app.run, {*run.VALUES, *run.FLAGS})],
)
def test_both_ways_of_reading_know_the_same_options(typed: Any, ours: set[str]) -> None:
    """The short way and typer's, which explains mistakes, must not drift apart."""
    app = typer.Typer(add_completion=False)
    app.command("it")(typed)
    options = {name for param in typer.main.get_command(app).params for name in param.opts}
    assert {name for name in options if name[0] == "-"} - {"--help"} == ours


@pytest.mark.parametrize(
    "words", [("--help",), ("x", "y"), ("--node",), ("--node-timeout", "soon"), ("-j",), ("--al",)]
)
def test_typer_explains_what_inspect_can_not_read(words: tuple[str, ...]) -> None:
    assert command.parse(words) is None
