"""`asynclock doctor` on its way to a server: Sentinels, seeds of a Cluster, and faults of TLS."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.replies import Failure
from asynclock.cli.doctor import groups as grouping
from asynclock.cli.doctor import tls
from asynclock.cli.doctor.findings import Severity
from asynclock.cli.doctor.groups import Group, resolve
from asynclock.testing import run_virtual

from .test_doctor_probe import Link

NOTE, WARNING, ERROR = Severity
GONE = Failure("connection refused")
PRIMARY = [b"10.0.0.1", b"6380"]


def resolved(monkeypatch: pytest.MonkeyPatch, url: str, **replies: Any) -> tuple[Group, list[str]]:
    """Resolve where each host gives these replies; return what is asked, too."""
    asked: list[str] = []

    async def ask(endpoint: Endpoint, *commands: Any) -> Any:
        asked.append(f"{endpoint.address}: " + "; ".join(" ".join(one) for one in commands))
        return replies[endpoint.host]

    monkeypatch.setattr(grouping, "_ask", ask)
    return run_virtual(resolve(url)), asked


def test_each_sentinel_is_asked_and_its_faults_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = resolved(
        monkeypatch,
        "redis+sentinel://:secret@s1,s2:7,s3,s4/main",
        s1=[PRIMARY, b"OK"],
        s2=GONE,
        s3=[None, Failure("ERR no such master")],
        s4=[PRIMARY, Failure("NOQUORUM not enough")],
    )
    questions = "SENTINEL GET-MASTER-ADDR-BY-NAME main; SENTINEL CKQUORUM main"
    places = ("s1:26379", "s2:7", "s3:26379", "s4:26379")
    assert asked == [f"{place}: {questions}" for place in places]
    assert [(one.code, one.severity, one.node, one.fix) for one in found.findings] == [
        ("sentinel-down", WARNING, "s2:7", "redis-cli -h s2 -p 7 PING"),
        ("sentinel-service", ERROR, "s3:26379", "redis-cli -h s3 -p 26379 SENTINEL MASTERS"),
        (
            "sentinel-quorum",
            WARNING,
            "s4:26379",
            "redis-cli -h s4 -p 26379 SENTINEL CKQUORUM main",
        ),
    ]
    down, unknown, quorum = (one.what for one in found.findings)
    assert down.endswith("can't be reached: connection refused")
    assert unknown.endswith("does not know the service main")
    assert quorum.endswith("could not carry out a failover: NOQUORUM not enough")
    ((server, url),) = found.servers
    assert (server.address, url) == ("10.0.0.1:6380", "redis+sentinel://:secret@s1,s2:7,s3,s4/main")


def test_sentinels_that_are_few_or_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    other = [b"10.0.0.2", b"6379"]
    found, _ = resolved(
        monkeypatch, "redis+sentinel://:secret@s1,s2/main", s1=[PRIMARY, b"OK"], s2=[other, b"OK"]
    )
    assert [(one.code, one.what, one.node) for one in found.findings] == [
        ("few-sentinels", "redis+sentinel://:***@s1,s2/main names 2 Sentinels", ""),
        (
            "sentinels-disagree",
            "Sentinels name different primaries: 10.0.0.1:6380, 10.0.0.2:6379",
            "",
        ),
    ]
    assert found.findings[1].fix == "redis-cli -p 26379 SENTINEL RESET main"
    nobody, _ = resolved(monkeypatch, "redis+sentinel://s1,s2,s3/main", s1=GONE, s2=GONE, s3=GONE)
    assert nobody.servers == []
    assert [one.code for one in nobody.findings] == ["sentinel-down"] * 3


NODES = b"id1 10.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-16383\n"


def test_the_first_seed_that_answers_speaks_for_its_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "redis+cluster://a,b:7,c,d"
    alone = [b"cluster_state:ok", Failure("ERR cluster support disabled")]
    good = [b"cluster_state:ok\r\ncluster_size:1", NODES]
    found, asked = resolved(monkeypatch, url, a=GONE, b=alone, c=good)
    places = ("a:6379", "b:7", "c:6379")
    assert asked == [f"{place}: CLUSTER INFO; CLUSTER NODES" for place in places]
    assert [(server.address, way) for server, way in found.servers] == [("10.0.0.1:7001", url)]
    assert found.findings == []
    bad, _ = resolved(monkeypatch, "redis+cluster://c", c=[b"cluster_state:fail", NODES])
    assert [(one.code, one.node, one.fix) for one in bad.findings] == [
        ("cluster-state", "c:6379", "redis-cli --cluster check c:6379")
    ]


def test_a_connection_on_the_way_is_closed_and_its_failure_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link(lambda words: " ".join(words).lower())

    async def greet(endpoint: Endpoint, *_: Any) -> Any:
        if endpoint.host == "gone":
            raise HandshakeError(GONE)
        return link

    monkeypatch.setattr(grouping, "greet", greet)
    here, gone = (Endpoint.from_url(f"redis://{host}") for host in ("here", "gone"))
    assert run_virtual(grouping._ask(here, ("PING",), ("INFO", "X"))) == ["ping", "info x"]
    assert link.closed == ["done"]
    assert run_virtual(grouping._ask(gone, ("PING",))) is GONE


# ---- TLS ----------------------------------------------------------------------------------------


def diagnosed(
    monkeypatch: pytest.MonkeyPatch, in_tls: Exception | bytes, plain: Exception | bytes
) -> str | None:
    """Return the fault where a connection with TLS, and one without, end like this."""

    def listen(_: Endpoint, context: ssl.SSLContext | None) -> bytes:
        said = plain if context is None else in_tls
        if isinstance(said, Exception):
            raise said
        return said

    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(Endpoint, "tls", lambda _: bare)
    monkeypatch.setattr(tls, "_listen", listen)
    return tls._look(Endpoint.from_url("redis://h"))


def refused(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("no")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (10, "tls-expired"),
        *((code, "tls-authority") for code in (18, 19, 20, 21)),
        (62, "tls-name"),
        (64, "tls-name"),
        (23, "tls-certificate"),
    ],
)
def test_what_is_wrong_with_a_certificate(
    monkeypatch: pytest.MonkeyPatch, code: int, fault: str
) -> None:
    assert diagnosed(monkeypatch, refused(code), b"+PONG") == fault


def test_a_port_that_answers_in_plain_text_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = TimeoutError()
    for plain, fault in (
        (b"+PONG\r\n", "tls-plain-port"),
        (b"-NOAUTH\r\n", "tls-plain-port"),
        (b"HTTP/1.1 400", None),
        (b"", None),
        (mute, None),
    ):
        assert diagnosed(monkeypatch, mute, plain) == fault
    for reason, other in (
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "tls-client-certificate"),
        ("RECORD_LAYER_FAILURE", "tls-plain-port"),
        ("UNEXPECTED_EOF_WHILE_READING", "tls-plain-port"),
        ("ODD", None),
    ):
        error = ssl.SSLError(1, "odd")
        error.reason = reason
        assert diagnosed(monkeypatch, error, b"+PONG") == other
    error = ssl.SSLError("eof occurred")
    error.reason = None  # type: ignore[assignment]  # as it is where OpenSSL names none
    assert diagnosed(monkeypatch, error, mute) == "tls-plain-port"


def test_a_socket_file_has_no_fault_of_tls() -> None:
    assert run_virtual(tls.diagnose(Endpoint.from_url("unix:///nowhere/s"))) is None
