"""What `asynclock doctor` makes of Sentinels, Clusters, TLS, other hosts and odd clocks: tables."""

import ast
import asyncio
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asynclock import _clock, cli
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.fleet import NAMED, digest
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.replicated.acks import Acks
from asynclock._nodes.wire import Failure
from asynclock._primitives.kinds import KINDS
from asynclock._rules.nodeset import Copy, NodeSet
from asynclock._rules.validity import Trust
from asynclock.cli import doctor, probe
from asynclock.cli.checks import OPTIONAL, TEXTS, call, examine
from asynclock.cli.probe import Probe, Purpose
from asynclock.testing import run_virtual
from tests.docs.blocks import ROOT

GONE = Failure("connection refused")
PURPOSE = Purpose(3, 10.0, 0.25, "asynclock:", Acks(), 1.0)


def probed(url: str, **reported: Any) -> Probe:
    return Probe(Endpoint.from_url(url), url, login="@" in url, **reported)


# ---- behind one URL ------------------------------------------------------------------------------
PRIMARY, OTHER = [b"10.0.0.1", b"6380"], [b"10.0.0.2", b"6379"]
S = "redis+sentinel://:secret@"
NODES = (
    b"id1 :7001@17001 myself,master - 0 0 1 connected 0-5000\n"
    b"id2 10.0.0.2:7002@17002 master - 0 0 2 connected 5001-9000\n"
    b"id3 10.0.0.3:7003@17003 master,fail - 0 0 3 connected 9001-16383\n"
    b"id4 10.0.0.4:7004@17004 master - 0 0 4 connected\n"
    b"id5 10.0.0.5:7005@17005 slave id1 0 0 1 connected\n"
)
ALONE = [b"cluster_state:ok", Failure("ERR cluster support disabled")]
HOSTS: dict[str, tuple[str, dict[str, Any], list[str], list[tuple[str, ...]]]] = {
    "each Sentinel has faults of its own": (
        f"{S}s1,s2:7,s3,s4/main",
        {
            "s1": [PRIMARY, b"OK"],
            "s2": GONE,
            "s3": [None, Failure("ERR no such master")],
            "s4": [PRIMARY, Failure("NOQUORUM not enough")],
        },
        ["10.0.0.1:6380"],
        [
            (
                "warning sentinel-down s2:7",
                "this Sentinel can't be reached: connection refused",
                "redis-cli -h s2 -p 7 PING",
            ),
            (
                "error sentinel-service s3:26379",
                "this Sentinel does not know the service main",
                "redis-cli -h s3 -p 26379 SENTINEL MASTERS",
            ),
            (
                "warning sentinel-quorum s4:26379",
                "this Sentinel could not carry out a failover: NOQUORUM not enough",
                "redis-cli -h s4 -p 26379 SENTINEL CKQUORUM main",
            ),
        ],
    ),
    "two Sentinels that disagree": (
        f"{S}s1,s2/main",
        {"s1": [PRIMARY, b"OK"], "s2": [OTHER, b"OK"]},
        ["10.0.0.1:6380"],
        [
            ("warning few-sentinels ", "redis+sentinel://:***@s1,s2/main names 2 Sentinels"),
            (
                "error sentinels-disagree ",
                "Sentinels name different primaries: 10.0.0.1:6380, 10.0.0.2:6379",
                "redis-cli -p 26379 SENTINEL RESET main",
            ),
        ],
    ),
    # The first one may be stale, and name the primary of before.
    "of Sentinels that disagree the majority is believed": (
        f"{S}s1,s2,s3/main",
        {"s1": [PRIMARY, b"OK"], "s2": [OTHER, b"OK"], "s3": [OTHER, b"OK"]},
        ["10.0.0.2:6379"],
        [("error sentinels-disagree ",)],
    ),
    "Sentinels that agree, and one with an odd reply": (
        f"{S}s1,s2,s3/main",
        {key: [OTHER, b"OK"] for key in ("s1", "s2")} | {"s3": [[b"h", b"x"], b"OK"]},
        ["10.0.0.2:6379"],
        [("error sentinel-service s3:26379",)],
    ),
    "no Sentinel": (
        f"{S}s1,s2,s3/main",
        dict.fromkeys(("s1", "s2", "s3"), GONE),
        [],
        [(f"warning sentinel-down {one}:26379",) for one in ("s1", "s2", "s3")],
    ),
    "the first seed that answers, whose own address it was never told": (
        "redis+cluster://a,b:7,c,d",
        {"a": GONE, "b": ALONE, "c": [b"cluster_state:ok\r\ncluster_size:1", NODES]},
        ["c:7001", "10.0.0.2:7002"],
        [],
    ),
    "a cluster that is not in order": (
        "redis+cluster://c",
        {"c": [b"cluster_state:fail", NODES]},
        ["c:7001", "10.0.0.2:7002"],
        [("error cluster-state c:6379", "", "redis-cli --cluster check c:6379")],
    ),
    "a cluster that tells its servers but not its state": (
        "redis+cluster://c",
        {"c": [Failure("NOPERM no right"), NODES]},
        ["c:7001", "10.0.0.2:7002"],
        [("error cluster-state c:6379",)],
    ),
    "no seed of a cluster": (
        "redis+cluster://a,b",
        {"a": GONE, "b": [b"cluster_state:ok", b"odd"]},
        ["a:6379", "b:6379"],
        [("warning odd-reply b:6379", "its reply to CLUSTER NODES has an unexpected form")],
    ),
}


@pytest.mark.parametrize("case", HOSTS)
def test_the_servers_behind_a_url(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, replies, servers, findings = HOSTS[case]
    asked: list[str] = []

    async def ask(endpoint: Endpoint, *commands: Any) -> Any:
        asked.append("; ".join(" ".join(one) for one in commands))
        return replies[endpoint.host]

    monkeypatch.setattr(doctor, "replies_of", ask)
    found = run_virtual(doctor.resolve(url))
    assert [(server.address, way) for server, way in found.servers] == [(s, url) for s in servers]
    for one, (begin, what, fix) in zip(
        found.findings, ((*row, "", "")[:3] for row in findings), strict=True
    ):
        assert f"{one.severity.name.lower()} {one.code} {one.node or ''}" == begin
        assert (one.what, one.fix) == (what or one.what, fix or one.fix)
    questions = "SENTINEL GET-MASTER-ADDR-BY-NAME main; SENTINEL CKQUORUM main"
    assert set(asked) == {"CLUSTER INFO; CLUSTER NODES" if "cluster" in url else questions}
    assert len(asked) == len(replies)


def test_a_connection_on_the_way_is_closed_and_its_failure_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    class Link:
        async def ask(self, command: Any) -> bytes:
            return bytes(command.packed)

        close = staticmethod(closed.append)

    async def greet(endpoint: Endpoint, *_: Any) -> Any:
        if endpoint.host == "gone":
            raise HandshakeError(GONE)
        return Link()

    monkeypatch.setattr(probe, "greet", greet)
    here, gone = (Endpoint.from_url(f"redis://{host}") for host in ("here", "gone"))
    assert run_virtual(probe.replies_of(here, ("PING",), ("INFO",))) == [
        b"*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nINFO\r\n",
    ]
    assert closed == ["done"]
    assert run_virtual(probe.replies_of(gone, ("PING",))) is GONE


# ---- other hosts ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("urls", "wanted"),
    [
        (["redis://10.0.0.1"], {"open", "plain"}),
        (["redis://:secret@10.0.0.1"], {"plain"}),
        (["rediss://10.0.0.1"], {"open"}),
        (["rediss://:secret@10.0.0.1"], set[str]()),
        (["redis://127.9.9.9"], set[str]()),
        (["redis://[::1]"], set[str]()),
        (["unix:///run/r.sock"], set[str]()),
        ([f"rediss://:secret@10.0.0.1:{port}" for port in (1, 2)], {"one-machine", "two-nodes"}),
        ([f"redis://localhost:{port}" for port in (1, 2)], {"two-nodes"}),
    ],
)
def test_what_an_address_tells(urls: list[str], wanted: set[str]) -> None:
    found = examine([[probed(url)] for url in urls], PURPOSE)
    assert {one.code for one in found} == wanted


@pytest.mark.parametrize(
    ("url", "begin"),
    [
        ("redis://h:7", "redis-cli -h h -p 7 PING"),
        ("rediss://h:7", "redis-cli -h h -p 7 --tls PING"),
        ("unix:///run/r.sock", "redis-cli -s /run/r.sock PING"),
    ],
)
def test_a_call_to_a_server(url: str, begin: str) -> None:
    assert call(probed(url), "PING") == begin


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("it does not speak the Redis protocol", "not-redis"),
        ("a reply that nobody asked for", "not-redis"),
        ("needs Redis 6.2", "version"),
        ("connection refused", "unreachable"),
    ],
)
def test_why_a_server_is_not_reached(cause: str, code: str) -> None:
    down = [
        probed("redis://localhost", down=Failure(cause), tls=fault) for fault in (None, "tls-only")
    ]
    found = [[one.code for one in examine([[server]], PURPOSE)] for server in down]
    assert found == [["no-quorum", code], ["no-quorum", "tls-only"]], "nothing else can be said"


def test_a_node_of_several_servers_is_reached_by_any_of_them() -> None:
    one, other = probed("redis://localhost:1", down=GONE), probed("redis://localhost:2")
    assert [found.code for found in examine([[one, other]], PURPOSE)] == ["unreachable"]


NAMES = tuple(f"127.0.0.{at}:6379" for at in (1, 2, 3))
WIDER = (*NAMES, "127.0.0.9:6379")


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (NodeSet(3, NAMES), {"set-clients": "2 clients use"}),
        (NodeSet(3, NAMES, WIDER, "open"), {"set-clients": ": old, wild", "set-step": "leads to"}),
        (
            NodeSet(3, NAMES, WIDER, "closing"),
            {"set-clients": ": new, wild", "set-step": "closing: it comes from"},
        ),
        # A node may be reached by another address than the one that the record has.
        (NodeSet(3, ("a:1", "b:1", "c:1")), {"set-clients": ": new, old, wild"}),
    ],
)
def test_clients_that_must_be_started_anew_are_named(
    record: NodeSet, wanted: dict[str, str]
) -> None:
    uses = {"old": digest(NAMES), "new": digest(WIDER), "wild": "0" * len(digest(NAMES))}
    listed = "\n".join(f"id=1 name={NAMED}{used}:{label} age=3" for label, used in uses.items())
    found = examine(
        [
            [probed(f"redis://{ours}", clients=listed.encode(), copy=Copy(1, record.text(), name))]
            for ours, name in zip(NAMES, record.nodes, strict=True)
        ],
        PURPOSE,
    )
    assert {one.code for one in found} == wanted.keys()
    assert all(wanted[one.code] in one.what for one in found)


# ---- TLS -----------------------------------------------------------------------------------------
def refused(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("no")
    error.verify_code = code
    return error


def broken(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "odd") if reason else ssl.SSLError("eof occurred")
    error.reason = reason  # type: ignore[assignment]  # None where OpenSSL names none
    return error


MUTE, PONG = TimeoutError(), b"+PONG\r\n"
CLIENT, PLAIN = "tls-client-certificate", "tls-plain-port"


@pytest.mark.parametrize(
    ("in_tls", "plain", "fault"),
    [
        (refused(10), PONG, "tls-expired"),
        *((refused(code), PONG, "tls-authority") for code in (18, 19, 20, 21)),
        *((refused(code), PONG, "tls-name") for code in (62, 64)),
        (refused(23), PONG, "tls-certificate"),
        (MUTE, PONG, PLAIN),
        (MUTE, b"-NOAUTH\r\n", PLAIN),
        *((MUTE, answer, None) for answer in (b"HTTP/1.1 400", b"", MUTE)),
        (broken("TLSV1_ALERT_UNKNOWN_CA"), PONG, CLIENT),
        (broken("sslv3 alert bad certificate"), PONG, CLIENT),
        (broken("TLSV13_ALERT_CERTIFICATE_REQUIRED"), PONG, CLIENT),
        (broken("SSLV3_ALERT_HANDSHAKE_FAILURE"), PONG, CLIENT),
        (broken("WRONG_VERSION_NUMBER"), PONG, PLAIN),
        (broken("RECORD_LAYER_FAILURE"), PONG, PLAIN),
        (broken("UNEXPECTED_EOF_WHILE_READING"), PONG, PLAIN),
        (broken(None), MUTE, PLAIN),
        (broken("NO_CIPHERS_AVAILABLE"), PONG, None),
    ],
    ids=str,
)
def test_the_fault_of_tls(
    in_tls: Exception, plain: Exception | bytes, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(_: Endpoint, context: ssl.SSLContext | None) -> bytes:
        said = plain if context is None else in_tls
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(Endpoint, "tls", lambda _: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    monkeypatch.setattr(probe, "_listen", listen)
    assert probe._look(Endpoint.from_url("redis://h")) == fault


def test_a_socket_file_has_no_fault_of_tls() -> None:
    assert run_virtual(probe.diagnose(Endpoint.from_url("unix:///nowhere/s"))) is None


# ---- clocks --------------------------------------------------------------------------------------
def watched(ways: list[tuple[float, float]], seconds: float, rate: float = 0.0) -> Probe:
    """Watch a clock; each request takes the next of these ways there and back, or the last."""
    left = list(ways)

    class Link:
        async def ask(self, _: Any) -> list[bytes]:
            there, back = left.pop(0) if len(left) > 1 else left[0]
            await asyncio.sleep(there)
            now = _clock.wall() + rate * _clock.now()
            await asyncio.sleep(back)
            return [b"%d" % int(now), b"%06d" % int(now % 1 * 1_000_000)]

    found, link = probed("redis://h"), Link()
    run_virtual(probe._watch_clock(found, link, Trust(10.0), seconds))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("ways", "seconds", "rate", "found"),
    [
        # The clock is good: only the way there, or the way back, is longer at first.
        ([(0.4, 0.0), (0.0, 0.2)], 3.0, 0.0, 0.0),
        ([(0.0, 0.4), (0.2, 0.0)], 3.0, 0.0, 0.0),
        # Of a wrong clock at least the rate that is certain.
        ([(0.1, 0.1)], 20.0, 0.1, 0.09),
        ([(0.1, 0.1)], 20.0, -0.1, -0.09),
    ],
)
def test_the_rate_of_a_clock_is_what_it_is_at_least(
    ways: list[tuple[float, float]], seconds: float, rate: float, found: float
) -> None:
    assert watched(ways, seconds, rate).rate == pytest.approx(found, abs=0.0099 * bool(rate))


@pytest.mark.parametrize(("seconds", "looks"), [(1.0, (10, 11)), (5.0, (50, 51))])
def test_a_clock_is_looked_at_for_as_long_as_asked_and_not_without_a_pause(
    seconds: float, looks: tuple[int, ...]
) -> None:
    assert len(watched([(0.0, 0.0)], seconds).trips) in looks


@pytest.mark.parametrize(("trips", "median"), [([], None), ([3, 1], 3), ([9, 1, 2], 2)])
def test_the_round_trip_is_the_median(trips: list[float], median: float | None) -> None:
    assert probed("redis://h", trips=trips).round_trip == median


# ---- the texts of findings -----------------------------------------------------------------------
def _findings_in_code() -> Iterator[tuple[str, set[str]]]:
    """Texts that the checks name, and the facts that they pass."""
    for file in Path(cli.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            names = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
            if node.func.id in ("about", "finding") and names:
                facts = {word.arg for word in node.keywords if word.arg}
                always = {"call", "set", "node", "server"} if node.func.id == "about" else set()
                yield names[0], facts | always


def test_each_text_of_a_finding_is_used_and_gets_its_facts() -> None:
    used = set()
    for text, facts in _findings_in_code():
        used.add(text)
        row = TEXTS[text]
        for words in (row["what"], row["why"], row["fix"], row.get("managed", "")):
            wanted = {*re.findall(r"(?<!{){([a-z_]+)", words)}
            assert wanted <= facts, (text, wanted - facts)
        # What no user of a managed service can do is not proposed to one.
        elsewhere = row.get("managed", row["fix"])
        assert not re.search(r"{set:(?!CONFIG SET|ACL SETUSER)|{call:(CONFIG|BGSAVE)", elsewhere)
    tls = {text for text in TEXTS if text.startswith("tls-")}  # named by tls.py, without facts
    assert used | tls == TEXTS.keys()


def test_the_table_of_the_page_has_every_finding_and_no_other() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    table = page.partition("| about | findings |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([\w-]+)`", table)
    codes = set(TEXTS) - {"cannot-use", "rights-optional"}  # texts of several findings
    codes |= {f"cannot-{(kind.method or kind.name).replace('_', '-')}" for kind in KINDS}
    codes |= {f"rights-{command.lower().replace(' ', '-')}" for command in OPTIONAL}
    assert sorted(listed) == sorted(codes)
