"""What the commands do in rare cases, as functions: a process per case would take seconds."""

from __future__ import annotations

import importlib.metadata
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from asynclock.cli import main
from asynclock.cli._ending import guarded
from asynclock.cli._start import start
from asynclock.cli._status import Status
from asynclock.cli.look import serve


@pytest.fixture
def handler() -> Iterator[None]:
    """The program changes what Ctrl-C does."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def fail(error: BaseException) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


# ---- how the program ends ------------------------------------------------------------------------


@pytest.mark.usefixtures("handler")
def test_a_missing_module_is_the_extra_only_if_the_extra_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from asynclock.cli import _start

    monkeypatch.setattr(_start, "start", fail(ModuleNotFoundError("no yaml", name="yaml.nodes")))
    with pytest.raises(ModuleNotFoundError, match="no yaml"):
        main()
    monkeypatch.setattr(_start, "start", fail(ModuleNotFoundError("no rich", name="rich.live")))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 64
    assert "pip install 'asynclock[cli]'" in capsys.readouterr().err


def test_the_page_needs_an_extra_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--node", "redis://localhost"]
    missing = ModuleNotFoundError("no uvicorn", name="uvicorn")
    monkeypatch.setattr(serve, "_serve", fail(missing))
    assert start(words) == Status.USAGE
    assert "pip install 'asynclock[cli,dashboard]'" in capsys.readouterr().err
    monkeypatch.setattr(serve, "_serve", fail(ModuleNotFoundError("no yaml", name="yaml")))
    with pytest.raises(ModuleNotFoundError, match="no yaml"):
        start(words)


def test_the_page_ends_when_its_server_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    listening: list[Any] = []

    async def served(_: Any, sockets: Any) -> None:
        listening.extend(one.getsockname() for one in sockets)

    monkeypatch.setattr(uvicorn.Server, "serve", served)
    monkeypatch.setenv(serve.TOKEN, "x" * 16)
    assert start(["serve", "--node", "memory://", "--port", "0"]) == Status.OK
    ((host, port),) = listening
    assert capsys.readouterr().out == f"http://{host}:{port}/#token={'x' * 16}\n"


def test_ctrl_c_in_a_command_has_one_status(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guarded(fail(KeyboardInterrupt())) == Status.INTERRUPTED
    monkeypatch.setattr(serve, "_serve", fail(KeyboardInterrupt()))
    assert start(["serve", "--node", "redis://localhost"]) == Status.INTERRUPTED


def test_ctrl_d_at_a_question_has_the_same_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_serve", fail(EOFError()))  # as the input of a prompt raises it
    assert start(["serve", "--node", "redis://localhost"]) == Status.INTERRUPTED


def test_a_checkout_that_is_not_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = importlib.metadata.PackageNotFoundError("asynclock")
    monkeypatch.setattr(importlib.metadata, "version", fail(missing))
    assert start(["--version"]) == Status.OK
    assert capsys.readouterr().out == "asynclock (not installed)\n"


# ---- what the commands print ---------------------------------------------------------------------
