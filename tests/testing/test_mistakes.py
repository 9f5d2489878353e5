"""What test helpers can't do is refused with the reason, and a failed start leaves nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import asynclock
from asynclock.errors import ConfigurationError
from asynclock.testing import FaultProxy, History, LocalServer, Quorum, busy, make_certificates
from asynclock.testing.servers import clock
from asynclock.testing.servers.local import ServerStartError


async def test_no_tls_on_a_unix_socket(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with pytest.raises(ConfigurationError, match="with tls or on a Unix socket, not both"):
        LocalServer(tls=certificates, unix=True)


def test_certificates_need_their_maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(ConfigurationError, match="pip install trustme"):
        make_certificates(tmp_path)


async def test_a_proxy_speaks_tcp() -> None:
    async with LocalServer(unix=True) as server:
        with pytest.raises(ConfigurationError, match="has a Unix socket only"):
            FaultProxy(server)
    async with FaultProxy(("127.0.0.1", 1)) as proxy:
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}"


async def test_a_rival_of_a_manager_takes_no_other_settings() -> None:
    async with asynclock.connect("memory://") as locks:
        with pytest.raises(ConfigurationError, match="has its nodes and settings already"):
            async with busy("a", locks, "memory://"):
                pass


async def test_servers_that_can_not_start_leave_nothing() -> None:
    group = Quorum(3, args=("--no-such-setting", "1"))
    with pytest.raises(ServerStartError, match="no-such-setting"):
        await group.__aenter__()
    assert not any(server.folder.exists() for server in group.servers)


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if reason := clock.why_no_clock_jumps():
        assert "clock jumps need" in reason
        return
    broken = tmp_path / "broken.c"
    broken.write_text("int here")
    monkeypatch.setattr(clock, "_SOURCE", broken)
    with pytest.raises(ConfigurationError, match=r"clock jumps: \S+ failed: .*broken\.c"):
        clock._library.__wrapped__()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "need Linux" in str(clock.why_no_clock_jumps())


def test_a_closed_history_can_be_read(tmp_path: Path) -> None:
    history = History(tmp_path / "events")
    history.acquired("a", "o", 1)
    history.close()
    history.close()
    assert [event.fence for event in history] == [1]
