"""What `asynclock doctor` shows: its table, its JSON, its findings and what it advises."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.replies import Failure
from asynclock._rules.nodeset import Kept, NodeSet
from asynclock._rules.trust import Facts
from asynclock.cli._sources import Settings
from asynclock.cli._text import clean
from asynclock.cli.doctor import command, identity, state
from asynclock.cli.doctor.command import _as_json, _print, _row
from asynclock.cli.doctor.counters import Counters
from asynclock.cli.doctor.findings import Finding, Severity, finding
from asynclock.cli.doctor.probe import Probe, Purpose

ONE = Purpose(1, 10.0, 0.25, "asynclock:", Acks(), 1.0)
THREE = Purpose(3, 10.0, 0.25, "asynclock:", Acks(), 1.0)
NOTE, WARNING, ERROR = Severity


def probed(url: str = "redis://h:7", **reported: Any) -> Probe:
    return Probe(Endpoint.from_url(url), url, login=False, **reported)


FULL: dict[str, Any] = {
    "facts": Facts(run_id="id", version="7.2.4", role="master", uptime=3600.0, tracking=True),
    "info": {"aof_enabled": "1", "redis_version": "7.2.4"},
    "config": {"appendfsync": "everysec"},
    "trips": [0.0012, 0.0034],
    "offset": -0.25,
    "rate": 0.01,
    "waits": 7.4,
    "counters": Counters(1234, 88_000_000),
    "kept": Kept(5, NodeSet(3, ("h:7",)).text(), "h:7"),
}


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        (
            {},
            (
                "h:7",
                "7.2.4",
                "master",
                "3600 s",
                "3.4 ms",
                "-250 ms",
                "everysec",
                "1,234 (88.0 MB)",
                "3",
                "in 7 s",
            ),
        ),
        (
            {"waits": 0.0, "offset": 0.5},
            (
                "h:7",
                "7.2.4",
                "master",
                "3600 s",
                "3.4 ms",
                "+500 ms",
                "everysec",
                "1,234 (88.0 MB)",
                "3",
                "now",
            ),
        ),
    ],
)
def test_a_row_of_the_table(changed: dict[str, Any], wanted: tuple[str, ...]) -> None:
    assert _row(probed(**{**FULL, **changed})) == wanted


def test_a_row_says_what_is_not_known() -> None:
    assert _row(probed()) == ("h:7", "?", "?", "?", "", "", "?", "?", "", "now")
    down = _row(probed(**FULL, down=Failure("refused")))
    assert down == ("h:7", "", "", "", "", "", "", "", "", "none: refused")


@pytest.mark.parametrize(
    ("reported", "keeps"),
    [
        ({"facts": Facts(durable=True), "info": {"aof_enabled": "1"}}, "all"),
        ({"info": {"aof_enabled": "1"}, "config": {"appendfsync": "no"}}, "no"),
        ({"info": {"aof_enabled": "1"}}, "?"),
        ({"info": {"aof_enabled": "0"}, "config": {"appendfsync": "always"}}, "nothing"),
        ({}, "?"),
    ],
)
def test_what_a_server_keeps(reported: dict[str, Any], keeps: str) -> None:
    assert _row(probed(**reported))[6] == keeps


FINDINGS = [
    Finding("two-nodes", ERROR, "", "two", "why two", "fix two"),
    Finding("slow", WARNING, "h:7", "slow\x1b[31m", "why\x07", "do\x1b this"),
    Finding("fsync", WARNING, "h:7", "sync", "why sync", "fix sync"),
    Finding("young", NOTE, "h:7", "young", "why young", "wait"),
]


def test_the_json_has_every_figure() -> None:
    shown = _as_json([probed(**FULL), probed(down=Failure("refused"))], FINDINGS[:2])
    assert shown["nodes"][0] == {
        "node": "h:7",
        "reachable": True,
        "cause": None,
        "version": "7.2.4",
        "role": "master",
        "run_id": "id",
        "uptime": 3600.0,
        "durable": False,
        "tracking": True,
        "round_trip": 0.0034,
        "clock_offset": -0.25,
        "clock_rate": 0.01,
        "votes_in": 7.4,
        "counters": 1234,
        "counters_bytes": 88_000_000,
        "epoch": 3,
    }
    gone = shown["nodes"][1]
    assert (gone["reachable"], gone["cause"], gone["counters"]) == (False, "refused", None)
    assert gone.keys() == shown["nodes"][0].keys()
    assert [one["node"] for one in shown["findings"]] == [None, "h:7"]
    assert shown["findings"][0] == {
        "code": "two-nodes",
        "severity": "error",
        "node": None,
        "what": "two",
        "why": "why two",
        "fix": "fix two",
    }


def test_findings_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    _print([probed(**FULL)], FINDINGS)
    titles, row, *lines = capsys.readouterr().out.splitlines()
    assert titles.split("  ")[0] == "node"
    for title in ("version", "role", "up for", "round trip", "clock", "keeps", "counters", "epoch"):
        assert title in titles
    assert row.startswith("h:7")
    assert lines == [
        "",
        "error   two  [two-nodes]",
        "        why:  why two",
        "        fix:  fix two",
        "",
        f"warning h:7: {clean(FINDINGS[1].what)}  [slow]",
        f"        why:  {clean(FINDINGS[1].why)}",
        f"        fix:  {clean(FINDINGS[1].fix)}",
        "",
        "warning h:7: sync  [fsync]",
        "        why:  why sync",
        "        fix:  fix sync",
        "",
        "note    h:7: young  [young]",
        "        why:  why young",
        "        fix:  wait",
        "",
        "1 error, 2 warnings, 1 note",
    ]
    assert not {"\x1b", "\x07"} & set("".join(lines)), "what a server says commands no terminal"


def test_without_findings_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    _print([], [])
    assert capsys.readouterr().out.splitlines()[-1] == "all is well"


def test_severities_have_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    monkeypatch.setattr(command, "console", lambda: out)
    monkeypatch.setattr(command, "print_table", lambda *_: None)
    _print([], FINDINGS)
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    for begin in ("\x1b[1;31merror", "\x1b[33mwarning", "\x1b[36mnote"):
        assert begin in shown


@pytest.mark.parametrize(
    ("severities", "status"), [([], 0), ([NOTE], 0), ([NOTE, WARNING], 1), ([ERROR, NOTE], 2)]
)
def test_the_exit_status_is_that_of_the_worst(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    severities: list[Severity],
    status: int,
) -> None:
    given: list[Any] = []

    async def examine(settings: Settings, watch: float, max_ttl: float | None) -> Any:
        given.append((settings.nodes, settings.prefix, settings.options["node_timeout"], watch))
        given.append(max_ttl)
        return [probed()], [Finding("code", one, "", "what", "why", "fix") for one in severities]

    monkeypatch.setattr(command, "_examine", examine)
    monkeypatch.delenv("ASYNCLOCK_CONFIG", raising=False)
    options: dict[str, Any] = {"node": ["redis://h:7"], "prefix": "x:", "node_timeout": 0.5}
    assert command.doctor(json=True, watch=3.0, max_ttl=20.0, **options) == status
    shown = json.loads(capsys.readouterr().out)
    assert [one["severity"] for one in shown["findings"]] == [
        one.name.lower() for one in severities
    ]
    assert given == [(("redis://h:7",), "x:", 0.5, 3.0), 20.0]
    assert command.doctor(json=False, **options) == status
    assert "version" in capsys.readouterr().out.splitlines()[0]


# ---- what is advised ----------------------------------------------------------------------------


def texts(found: Any) -> list[tuple[str, str]]:
    return [(one.what, one.fix) for one in found]


CLI = "redis-cli -h h -p 7"


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("OOM", f"{CLI} CONFIG SET maxmemory 0; {CLI} CONFIG REWRITE  (or more memory)"),
        ("MISCONF", f"free its disk; then: {CLI} BGSAVE"),
        (
            "NOREPLICAS",
            (
                f"{CLI} CONFIG SET min-replicas-to-write 0; {CLI} CONFIG REWRITE"
                "  (or repair the replicas)"
            ),
        ),
        ("LOADING", "wait until it has loaded its data"),
        ("STRANGE", "look at its log"),
    ],
)
def test_a_server_that_refuses_writes_is_helped_by_its_reason(code: str, fix: str) -> None:
    server = probed(refused={"SET": Failure("no room", code=code)})
    assert texts(state.writes(server, ONE)) == [("it refuses writes: no room", fix)]


def test_why_persistence_matters_depends_on_the_number_of_nodes() -> None:
    server = probed(info={"aof_enabled": "0"})
    (alone,), (voter,) = state.persistence(server, ONE), state.persistence(server, THREE)
    assert "can't know that locks are gone" in alone.why
    assert "this costs availability, not safety" in voter.why
    rewrite = f"{CLI} CONFIG SET appendfsync always"
    assert alone.fix.startswith(f"{rewrite}; {CLI} CONFIG SET appendonly yes")
    everysec = probed(info={"aof_enabled": "1"}, config={"appendfsync": "everysec"})
    ((what, fix),) = texts(state.persistence(everysec, ONE))
    assert what.startswith("appendfsync is everysec")
    assert fix.startswith(rewrite)
    assert not list(state.persistence(probed(info={"a": "b"}, facts=Facts(durable=True)), ONE))


def test_replicas_that_grants_do_not_wait_for() -> None:
    for count, wanted in (
        ("1", "add a second replica, then connect(..., acks=1): with one replica alone"),
        ("2", "connect(..., acks=1), or acks = 1 in the TOML file"),
    ):
        ((what, fix),) = texts(state.replicas(probed(info={"connected_slaves": count}), ONE))
        assert what.startswith(f"it has {count} replicas")
        assert fix.startswith(wanted)


def test_replicas_that_are_missing() -> None:
    purpose = Purpose(3, 10.0, 0.25, "asynclock:", Acks("all"), 1.0)
    server = probed(info={"redis_version": "7.0.0"}, config={"min-replicas-to-write": "2"})
    assert texts(state.replicas(server, purpose)) == [
        (
            "min-replicas-to-write is 2, connected are 0",
            (
                f"{CLI} CONFIG SET min-replicas-to-write 0"
                "  (and in what it is started with: it has no file for CONFIG REWRITE)"
                "  (or repair the replicas)"
            ),
        ),
        (
            "acks=all needs 1 replicas, connected are 0",
            "connect more replicas (on each: REPLICAOF h 7), or ask for fewer acks",
        ),
    ]


def test_a_clock_and_a_round_trip_are_told_in_figures() -> None:
    assert texts(state.clock(probed(offset=-61.04), ONE))[0][0] == "its clock is -61.0 s off ours"
    jumped = texts(state.clock(probed(jumped=1.5), ONE))
    assert jumped[0][0].startswith("its clock jumped by +1.500 s")
    slow = texts(state.clock(probed(rate=-0.021), ONE))
    assert slow[0][0] == "its clock runs -2.1% against ours"


def test_a_fast_server_with_a_short_timeout_is_given_the_usual_one() -> None:
    short = Purpose(1, 10.0, 0.1, "asynclock:", Acks(), 1.0)
    ((what, fix),) = texts(state.speed(probed(trips=[0.026]), short))
    assert what == "a round trip takes 26 ms; node_timeout is 0.1 s"
    assert "node_timeout=0.25" in fix


def test_counters_are_heavy_above_a_hundred_megabytes() -> None:
    assert not list(state.counters(probed(counters=Counters(9, 100_000_000)), ONE))
    ((what, _),) = texts(state.counters(probed(counters=Counters(9, 100_000_001)), ONE))
    assert what == "it keeps 9 (100.0 MB) fence counters"


def test_what_kind_of_server_it_is() -> None:
    replica = probed(facts=Facts(role="slave"), info={"master_host": "p", "master_port": "9"})
    ((what, fix),) = texts(identity.role(replica, ONE))
    assert what == "it is a replica of p:9"
    assert fix.startswith(f"name p:9 instead, or make it independent: {CLI} REPLICAOF NO ONE")
    ((what, _),) = texts(identity.role(probed(facts=Facts(role="slave")), ONE))
    assert what == "it is a replica of ?:?"
    ((_, fix),) = texts(identity.role(probed(info={"redis_mode": "sentinel"}), ONE))
    assert fix == "name the service: redis+sentinel://h:7/SERVICE"
    ((_, fix),) = texts(identity.cluster(probed(info={"cluster_enabled": "1"}), ONE))
    assert fix == "name the cluster: redis+cluster://h:7"
    ((what, _),) = texts(identity.version(probed(info={"redis_version": "6.0.9"}), ONE))
    assert what == "its version is 6.0.9; 6.2 is the oldest supported"
    assert not list(identity.version(probed(info={"redis_version": "7.beta"}), ONE))


def test_why_a_command_that_was_renamed_matters() -> None:
    unknown = Failure("ERR unknown command", code="ERR")
    found = {
        one.what.split()[4]: (one.severity, one.why)
        for one in identity.rights(
            probed(refused=dict.fromkeys(("EVAL", "SCAN", "WAIT", "CONFIG GET"), unknown)), ONE
        )
    }
    assert found["EVAL:"] == (ERROR, "The scripts of a lock need it.")
    assert found["SCAN:"] == (NOTE, identity.OPTIONAL["SCAN"])
    assert found["WAIT:"] == (WARNING, identity.OPTIONAL["WAIT"])
    assert found["CONFIG"] == (WARNING, identity.OPTIONAL["CONFIG GET"])


def test_a_refused_push_names_the_first_refusal_only() -> None:
    no = Failure("NOPERM no", code="NOPERM")
    refused = {"CLIENT CACHING": no, "CLIENT TRACKING": Failure("other", code="ERR")}
    ((what, fix),) = texts(identity.tracking(probed(user="ann", refused=refused), ONE))
    assert what == "it refuses CLIENT TRACKING: other"
    assert f"{CLI} ACL SETUSER ann +client|tracking +client|caching" in fix


def test_a_text_has_the_severity_that_it_is_given() -> None:
    facts: dict[str, Any] = {"count": 4, "spare": 1, "fewer": 3, "more": 5}
    assert finding("even-number", **facts).severity is NOTE
    assert finding("even-number", **facts, severity=ERROR).severity is ERROR
    assert finding("even-number", **facts, code="other").code == "other"
    assert finding("two-nodes").severity is ERROR
