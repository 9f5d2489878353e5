"""What `asynclock doctor` finds where no server can be made to be like that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from asynclock import _clock
from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._rules.trust import Facts, Trust
from asynclock.cli.doctor import probe as probing
from asynclock.cli.doctor import state, tls
from asynclock.cli.doctor.command import _print_finding, _row
from asynclock.cli.doctor.findings import Finding, Severity
from asynclock.cli.doctor.groups import resolve
from asynclock.cli.doctor.probe import Probe, Purpose
from asynclock.cli.doctor.trial import _cause
from asynclock.testing import LocalServer, run_virtual
from asynclock.testing.servers.ports import ReservedPort


def purpose(acks: Acks = Acks()) -> Purpose:  # noqa: B008 - it can't change
    return Purpose(3, 10.0, 0.25, "asynclock:", acks, 1.0)


def probed(url: str = "redis://h", **reported: Any) -> Probe:
    return Probe(Endpoint.from_url(url), url, False, **reported)


class Server:
    """Answers each command as `answer` says."""

    def __init__(self, answer: Callable[[tuple[bytes, ...]], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[bytes, ...]] = []

    async def ask(self, command: Command) -> Any:
        words = tuple(str(word).encode() for word in command.args)
        self.asked.append(words)
        return self.answer(words)


# ---- servers that answer nothing, or in their own way --------------------------------------------


async def test_a_server_that_hangs_up_after_the_greeting_is_down() -> None:
    found, gone = probed(), Failure("it hung up")
    await probing._ask(found, Server(lambda _: gone), purpose())  # type: ignore[arg-type]
    assert found.down is gone
    assert not found.refused


@pytest.mark.parametrize(
    ("acks", "wanted"),
    [(Acks(), set[str]()), (Acks(1), {"WAIT"}), (Acks(1, durable=True), {"WAIT", "WAITAOF"})],
)
async def test_only_what_the_settings_need_is_tried(acks: Acks, wanted: set[str]) -> None:
    found, refusal = probed(), Failure("unknown command", code="ERR")
    await probing._try_commands(found, Server(lambda _: refusal), purpose(acks))  # type: ignore[arg-type]
    assert {"WAIT", "WAITAOF"} & found.refused.keys() == wanted
    assert {"SET", "EVALSHA"} <= found.refused.keys()


@pytest.mark.parametrize("jumps", [0, 1, 2])
def test_a_clock_that_jumps_once_has_no_rate(jumps: int) -> None:
    """And one that jumps in every second has: it is the rate that differs."""
    shift = 0.0

    def time_of(_: Any) -> list[bytes]:
        nonlocal shift
        moments.append(_clock.now())
        if len(moments) in (4, 8)[:jumps]:
            shift += 30.0
        seconds, micros = divmod(round((_clock.wall() + shift) * 1_000_000), 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    async def watch() -> None:
        link: Any = Server(time_of)
        await probing._watch_clock(found, link, Trust(10.0), 3.0)

    found, moments = probed(), list[float]()
    run_virtual(watch())
    assert found.offset == pytest.approx(30.0 * jumps, abs=0.01)
    assert found.jumped == pytest.approx(30.0 if jumps == 1 else 0.0, abs=0.01)
    assert (found.rate > 1.0) == (jumps == 2)


def test_a_call_that_never_ends_is_a_cause() -> None:
    assert run_virtual(_cause(asyncio.sleep(3600))) == "no answer within 4 s"
    assert run_virtual(_cause(asyncio.sleep(1))) is None


async def test_a_cluster_none_of_whose_seeds_answers_is_its_seeds() -> None:
    with ReservedPort() as port:
        url = f"redis+cluster://127.0.0.1:{port},127.0.0.1:{port}"
        found = await resolve(url)
    assert [(seed.port, shown) for seed, shown in found.servers] == [(port, url)] * 2
    assert not found.findings


async def test_a_seed_that_is_no_member_of_a_cluster_names_nobody(
    asynclock_nodes: list[LocalServer],
) -> None:
    ports = [node.port for node in asynclock_nodes[:2]]
    found = await resolve("redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports))
    assert [seed.port for seed, _ in found.servers] == ports


# ---- checks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"]
)
def test_a_disk_that_fails_is_named(field: str) -> None:
    (found,) = state.disk(probed(info={field: "err"}), purpose())
    assert found.code == "disk"
    assert state.SAVES[field] in found.what
    assert not list(state.disk(probed(info={field: "ok"}), purpose()))


def test_what_the_configuration_hides_is_no_finding() -> None:
    info = {"aof_enabled": "1"}
    assert not list(state.persistence(probed(info=info), purpose()))
    (found,) = state.persistence(probed(info=info, config={"appendfsync": "no"}), purpose())
    assert found.code == "fsync"


async def test_a_port_where_nobody_listens_has_no_fault_of_tls() -> None:
    with ReservedPort() as port:
        for scheme in ("redis", "rediss"):
            endpoint = Endpoint.from_url(f"{scheme}://127.0.0.1:{port}")
            assert await tls.diagnose(endpoint) is None


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "tls-client-certificate"),
        ("sslv3 alert bad certificate", "tls-client-certificate"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "tls-client-certificate"),
        ("WRONG_VERSION_NUMBER", "tls-plain-port"),
        ("NO_CIPHERS_AVAILABLE", None),
    ],
)
def test_the_reason_of_a_broken_handshake(reason: str, fault: str | None) -> None:
    assert tls._by_reason(reason) == fault


# ---- output --------------------------------------------------------------------------------------


def test_a_replica_has_no_vote_in_the_table() -> None:
    for role, vote in (("slave", "none: a slave"), ("master", "now"), (None, "now")):
        assert _row(probed(facts=Facts(role=role)))[-1] == vote


def test_on_a_terminal_a_long_fix_stays_in_its_column() -> None:
    out = Console(force_terminal=True, width=40, no_color=True, highlight=False)
    finding = Finding("code", Severity.ERROR, "a:1", "what", "why", "word " * 20 + "end")
    with out.capture() as captured:
        _print_finding(out, finding)
    *_, one, other = captured.get().rstrip().splitlines()
    assert one.startswith("        word word")
    assert other.strip().endswith("end")
    assert len(one.rstrip()) <= 40
