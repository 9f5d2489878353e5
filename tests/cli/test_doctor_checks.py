"""Each check of `asynclock doctor` at its bounds, on servers that report what a test says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.replies import Failure
from asynclock._rules.trust import Facts
from asynclock.cli.doctor import identity, state
from asynclock.cli.doctor.checkup import examine
from asynclock.cli.doctor.counters import Counters
from asynclock.cli.doctor.findings import Finding, Severity, call, set_for_good
from asynclock.cli.doctor.probe import SECOND, Probe, Purpose
from asynclock.cli.doctor.state import HEAVY

ONE = Purpose(1, 10.0, 0.25, "asynclock:", Acks(), 1.0)
THREE = replace(ONE, nodes=3)
NOTE, WARNING, ERROR = Severity


def probed(url: str = "redis://localhost", *, login: bool = True, **reported: Any) -> Probe:
    """Return a server that reports this; `user` and `password` are known."""
    return Probe(Endpoint.from_url(url.replace("+cluster", "")), url, login, **reported)


def refused(**commands: Failure) -> dict[str, Failure]:
    return {name.replace("_", " "): failure for name, failure in commands.items()}


def no(code: str, said: str = "no") -> Failure:
    return Failure(said, code=code)


def shown(found: Any) -> list[tuple[str, Severity]]:
    return [(one.code, one.severity) for one in found]


# ---- one server ----------------------------------------------------------------------------------

CASES: list[tuple[Any, dict[str, Any], Purpose, list[tuple[str, Severity]]]] = [
    (identity.version, {"info": {"redis_version": "6.2.0"}}, ONE, []),
    (identity.version, {"info": {"redis_version": "6.0.16"}}, ONE, [("version", ERROR)]),
    (identity.version, {"info": {"redis_version": "10.0.1"}}, ONE, []),
    (identity.version, {}, ONE, []),
    (identity.role, {"facts": Facts(role="slave")}, ONE, [("replica", ERROR)]),
    (identity.role, {"facts": Facts(role="master")}, ONE, []),
    (identity.role, {}, ONE, []),
    (identity.cluster, {"info": {"cluster_enabled": "1"}}, ONE, [("cluster", ERROR)]),
    (identity.cluster, {"info": {"cluster_enabled": "0"}}, ONE, []),
    (
        identity.cluster,
        {"url": "redis+cluster://h", "info": {"cluster_enabled": "1"}},
        ONE,
        [],
    ),
    (identity.proxy, {"facts": Facts(run_id="a"), "other_run_id": None}, ONE, []),
    (identity.proxy, {"facts": Facts(run_id="a"), "other_run_id": "a"}, ONE, []),
    (identity.proxy, {"facts": Facts(run_id="a"), "other_run_id": "b"}, ONE, [("proxy", ERROR)]),
    (identity.access, {"login": False}, ONE, []),
    (identity.access, {"url": "redis://127.9.9.9", "login": False}, ONE, []),
    (identity.access, {"url": "redis://[::1]", "login": False}, ONE, []),
    (identity.access, {"url": "unix:///run/r.sock", "login": False}, ONE, []),
    (
        identity.access,
        {"url": "redis://h", "login": False},
        ONE,
        [("open", WARNING), ("plain", NOTE)],
    ),
    (
        identity.full,
        {"refused": {SECOND: no("ERR", "max number of clients reached")}},
        ONE,
        [("maxclients", ERROR)],
    ),
    (identity.full, {"refused": {SECOND: no("ERR", "it hung up")}}, ONE, []),
    (
        identity.tracking,
        {"refused": refused(CLIENT_TRACKING=no("NOPERM"), CLIENT_CACHING=no("NOPERM"))},
        ONE,
        [("tracking", WARNING)],
    ),
    (
        identity.tracking,
        {"refused": refused(CLIENT_CACHING=no("ERR"))},
        ONE,
        [("tracking", WARNING)],
    ),
    (identity.usable, {"unusable": {"lock": "why"}}, ONE, [("cannot-lock", ERROR)]),
    (identity.usable, {"unusable": {"multi_lock": "why"}}, ONE, [("cannot-multi-lock", WARNING)]),
    # memory
    (state.counters, {}, ONE, []),
    (state.counters, {"counters": Counters(9, None)}, ONE, []),
    (state.counters, {"counters": Counters(9, HEAVY)}, ONE, []),
    (state.counters, {"counters": Counters(9, HEAVY + 1)}, ONE, [("counters", NOTE)]),
    (state.memory, {"info": {"maxmemory": "100", "used_memory": "90"}}, ONE, []),
    (state.memory, {"info": {"maxmemory": "100", "used_memory": "91"}}, ONE, [("memory", WARNING)]),
    (state.memory, {"info": {"maxmemory": "0", "used_memory": "91"}}, ONE, []),
    (state.memory, {"facts": Facts(maxmemory_policy="allkeys-lru")}, ONE, [("evicts", WARNING)]),
    (
        state.memory,
        {"facts": Facts(maxmemory_policy="allkeys-lru"), "info": {"maxmemory": "100"}},
        ONE,
        [("evicts", ERROR)],
    ),
    (state.memory, {"facts": Facts(maxmemory_policy="noeviction")}, ONE, []),
    # disks
    (state.persistence, {"info": {"aof_enabled": "0"}}, ONE, [("no-persistence", WARNING)]),
    (
        state.persistence,
        {"info": {"aof_enabled": "0"}},
        replace(ONE, nodes=2),
        [("no-persistence", NOTE)],
    ),
    (state.persistence, {"info": {"aof_enabled": "0"}}, THREE, [("no-persistence", NOTE)]),
    (state.persistence, {}, ONE, []),
    # writes
    (state.writes, {"refused": refused(SET=no("OOM"))}, ONE, [("refuses-writes", ERROR)]),
    (state.writes, {"refused": refused(SET=no("STRANGE"))}, ONE, [("refuses-writes", ERROR)]),
    *[
        (state.writes, {"refused": refused(SET=no(code))}, ONE, [])
        for code in ("NOPERM", "READONLY", "MOVED", "")
    ],
    # restarts and clocks
    (state.restart, {"waits": 0.0}, ONE, []),
    (state.restart, {"waits": 0.5}, ONE, [("young", NOTE)]),
    (state.clock, {"offset": 1.0}, ONE, []),
    (state.clock, {"offset": -1.0}, ONE, []),
    (state.clock, {"offset": 1.1}, ONE, [("clock-offset", WARNING)]),
    (state.clock, {"offset": -1.1}, ONE, [("clock-offset", WARNING)]),
    (state.clock, {"offset": 60.0}, ONE, [("clock-offset", WARNING)]),
    (state.clock, {"offset": -61.0}, ONE, [("clock-offset", ERROR)]),
    (state.clock, {"offset": None}, ONE, []),
    (state.clock, {"rate": 0.0009}, ONE, []),
    (state.clock, {"rate": 0.02}, ONE, [("clock-rate", ERROR)]),
    (state.clock, {"rate": -0.02}, ONE, [("clock-rate", ERROR)]),
    (state.clock, {"jumped": -5.0, "rate": 0.5}, ONE, [("clock-jumped", ERROR)]),
    # replicas
    (state.replicas, {"config": {"min-replicas-to-write": "1"}}, ONE, [("min-replicas", ERROR)]),
    (
        state.replicas,
        {"config": {"min-replicas-to-write": "1"}, "info": {"connected_slaves": "1"}},
        replace(ONE, acks=Acks(1)),
        [],
    ),
    (
        state.replicas,
        {"info": {"connected_slaves": "2"}},
        ONE,
        [("replicas-without-acks", WARNING)],
    ),
    (state.replicas, {"info": {"connected_slaves": "2"}}, THREE, []),
    (state.replicas, {"info": {"connected_slaves": "1"}}, replace(ONE, acks=Acks(1)), []),
    (
        state.replicas,
        {"info": {"connected_slaves": "1"}},
        replace(ONE, acks=Acks(2)),
        [("too-few-replicas", ERROR)],
    ),
    (state.replicas, {}, replace(ONE, acks=Acks(2)), []),
    (
        state.replicas,
        {"info": {"connected_slaves": "2"}, "config": {"min-replicas-to-write": "0"}},
        THREE,
        [("min-replicas-unset", WARNING)],
    ),
    # speed and connections
    (state.speed, {"trips": [0.0625]}, ONE, []),
    (state.speed, {"trips": [0.07]}, ONE, [("slow", WARNING)]),
    (state.speed, {"trips": [0.26]}, ONE, [("slow", ERROR)]),
    (state.speed, {"trips": [0.001, 0.001, 9.0]}, ONE, []),
    (state.speed, {"trips": [9.0, 0.001, 9.0]}, ONE, [("slow", ERROR)]),
    (state.speed, {"trips": []}, ONE, []),
    (
        state.connections,
        {"config": {"maxclients": "1000"}, "info": {"connected_clients": "900"}},
        ONE,
        [],
    ),
    (
        state.connections,
        {"config": {"maxclients": "1000"}, "info": {"connected_clients": "901"}},
        ONE,
        [("maxclients", WARNING)],
    ),
    (
        state.connections,
        {"config": {"maxclients": "100"}, "info": {"connected_clients": "84"}},
        ONE,
        [],
    ),
    (
        state.connections,
        {"config": {"maxclients": "100"}, "info": {"connected_clients": "85"}},
        ONE,
        [("maxclients", WARNING)],
    ),
    (state.connections, {"info": {"connected_clients": "85"}}, ONE, []),
    (state.connections, {"config": {"timeout": "30"}}, ONE, [("idle-timeout", WARNING)]),
    (state.connections, {"config": {"timeout": "0", "maxclients": "odd"}}, ONE, []),
]


@pytest.mark.parametrize(("check", "reported", "purpose", "wanted"), CASES)
def test_a_check_at_its_bounds(
    check: Any, reported: dict[str, Any], purpose: Purpose, wanted: list[tuple[str, Severity]]
) -> None:
    server = probed(**reported)
    assert shown(check(server, purpose)) == wanted
    # It is one of those that doctor makes.
    made = shown(examine([[server]], purpose))
    assert all(one in made for one in wanted)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (no("ERR", "max number of clients reached"), "maxclients"),
        (no("WRONGPASS"), "login"),
        (no("NOAUTH"), "login"),
        (no("NOPERM"), "login"),
        (Failure("it does not speak RESP3"), "not-redis"),
        (Failure("a reply that nobody asked for"), "not-redis"),
        (Failure("needs Redis 6.2"), "version"),
        (Failure("connection refused"), "unreachable"),
    ],
)
def test_why_a_server_is_not_reached(failure: Failure, code: str) -> None:
    down = probed(down=failure)
    assert shown(identity.unreachable(down, failure)) == [(code, ERROR)]
    assert shown(identity.unreachable(replace(down, tls="tls-only"), failure)) == [
        ("tls-only", ERROR)
    ]
    codes = [code for code, _ in shown(examine([[down]], ONE))]
    assert codes == ["no-quorum", code], "nothing else can be said of it"


def test_what_a_user_may_not_do() -> None:
    keys = no("NOPERM", "no permissions to access one of the keys")
    server = probed(
        user="locks",
        refused=refused(
            SET=keys, EVAL=no("NOPERM"), CONFIG_GET=no("NOPERM"), SCAN=no("NOPERM"), GET=no("OOM")
        ),
    )
    found = {one.code: one for one in identity.rights(server, ONE)}
    assert {code: one.severity for code, one in found.items()} == {
        "rights": ERROR,
        "rights-config-get": WARNING,
        "rights-scan": NOTE,
    }
    assert "ACL SETUSER locks +eval +set ~asynclock:*" in found["rights"].fix
    assert "ACL SETUSER locks +config|get" in found["rights-config-get"].fix
    (one,) = identity.rights(probed(refused=refused(SET=no("NOPERM"))), ONE)
    assert "~asynclock" not in one.fix


def test_commands_that_a_server_does_not_know() -> None:
    unknown = no("ERR", "unknown command 'X'")
    server = probed(
        refused=refused(SCRIPT_LOAD=unknown, EVAL=unknown, SCAN=unknown, CLIENT_TRACKING=unknown)
    )
    found = list(identity.rights(server, ONE))
    assert shown(found) == [("renamed", ERROR), ("renamed", NOTE), ("renamed", WARNING)]
    assert "`rename-command SCRIPT …`" in found[-1].fix


# ---- what is advised -----------------------------------------------------------------------------


def test_a_call_to_a_server() -> None:
    for url, begin in (
        ("redis://h:7", "redis-cli -h h -p 7 PING"),
        ("rediss://h:7", "redis-cli -h h -p 7 --tls PING"),
        ("unix:///run/r.sock", "redis-cli -s /run/r.sock PING"),
    ):
        assert call(probed(url), "PING") == begin


@pytest.mark.parametrize(
    ("info", "config", "words", "end"),
    [
        (
            {"config_file": "/r.conf"},
            {},
            "CONFIG SET a b",
            "; redis-cli -h h -p 6379 CONFIG REWRITE",
        ),
        ({}, {}, "CONFIG SET a b", "; redis-cli -h h -p 6379 CONFIG REWRITE"),
        ({"config_file": ""}, {}, "CONFIG SET a b", "no file for CONFIG REWRITE)"),
        ({"config_file": "/r"}, {"aclfile": "/a"}, "ACL SETUSER u", " ACL SAVE"),
        ({"config_file": "/r"}, {"aclfile": ""}, "ACL SETUSER u", " CONFIG REWRITE"),
        ({"config_file": "/r"}, {"aclfile": "/a"}, "CONFIG SET a b", " CONFIG REWRITE"),
    ],
)
def test_what_is_changed_is_kept(
    info: dict[str, str], config: dict[str, str], words: str, end: str
) -> None:
    server = probed("redis://h", info={**info, "x": "y"} if info else {}, config=config)
    assert set_for_good(server, words).startswith(f"redis-cli -h h -p 6379 {words}")
    assert set_for_good(server, words).endswith(end)


def only(found: Any) -> Finding:
    (one,) = found
    assert isinstance(one, Finding)
    return one


def test_figures_that_are_advised() -> None:
    """Twice of what is too little, and never less than the usual."""
    slow = only(state.speed(probed(trips=[0.2]), ONE))
    assert "takes 200 ms; node_timeout is 0.25 s" in slow.what
    assert "node_timeout=1.6" in slow.fix
    assert "node_timeout=0.5" in only(state.speed(probed(trips=[0.065]), ONE)).fix
    info = {"maxmemory": "1000", "used_memory": "950"}
    memory = only(state.memory(probed(info=info), ONE))
    assert ("95% of its" in memory.what, "maxmemory 2000" in memory.fix) == (True, True)
    for most, wanted in (("100", "10000"), ("20000", "40000")):
        server = probed(config={"maxclients": most}, info={"connected_clients": most})
        assert f"maxclients {wanted}" in only(state.connections(server, ONE)).fix
        full = replace(server, refused={SECOND: no("ERR", "max number of clients")})
        assert f"maxclients {wanted}" in only(identity.full(full, ONE)).fix
    young = only(state.restart(probed(waits=7.4, waits_because="restarted"), ONE))
    assert "does not vote for another 7 s: it restarted" in young.what
    assert "keep grants over restarts" in young.fix
    durable = probed(waits=7.4, facts=Facts(durable=True))
    assert 'restart_guard="disk"' in only(state.restart(durable, ONE)).fix
