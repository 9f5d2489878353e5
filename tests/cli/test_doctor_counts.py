"""The counters that `asynclock doctor` finds, and the settings by which it judges servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.replies import Failure
from asynclock._rules.nodeset import Kept, NodeSet
from asynclock.cli._sources import Settings
from asynclock.cli.doctor import command, counters
from asynclock.cli.doctor.counters import Counters, count_counters
from asynclock.cli.doctor.findings import Severity
from asynclock.cli.doctor.groups import Group
from asynclock.cli.doctor.probe import Probe, Purpose
from asynclock.testing import run_virtual

from .test_doctor_probe import Answer, Link

# ---- counters -----------------------------------------------------------------------------------


def counted(answer: Answer) -> tuple[Counters | None, list[str]]:
    link = Link(answer, 0.0, 0.0)
    return run_virtual(count_counters(link, "shop:")), link.asked  # type: ignore[arg-type]


def pages(of_page: list[bytes], last: int, size: Any = 72, total: Any = 10_000) -> Answer:
    """Answer with this page again and again, `last` times."""

    def answer(words: list[str]) -> Any:
        if words[0] == "SCAN":
            number = int(words[1]) + 1
            return [b"%d" % (0 if number == last else number), of_page]
        return total if words[0] == "DBSIZE" else size

    return answer


NAMES = [b"shop:%d:#fence" % number for number in range(5)] + [b"shop:a", b"else:1:#fence"]


def test_counters_are_counted_to_the_end() -> None:
    found, asked = counted(pages(NAMES, 3))
    assert found == Counters(15, 15 * 72)
    assert asked[:3] == [f"SCAN {cursor} COUNT 1000" for cursor in range(3)]
    assert len(asked) == 3 + 15
    assert found is not None
    assert found.shown == "15 (0.0 MB)"


def test_of_many_counters_a_sample_is_weighed() -> None:
    sizes = iter(range(1000))

    def answer(words: list[str]) -> Any:
        return next(sizes) if words[0] == "MEMORY" else pages(NAMES, 20)(words)

    found, asked = counted(answer)
    weighed = [words for words in asked if words.startswith("MEMORY")]
    assert 10 <= len(weighed) <= 20
    assert found is not None
    assert (found.count, found.size) == (100, round((len(weighed) - 1) / 2 * 100))


def test_a_large_server_is_judged_by_a_part_of_it() -> None:
    found, asked = counted(pages(NAMES, 10**9, total=70_000))
    assert found is not None
    assert (found.count, found.size) == (50_000, 50_000 * 72), "5 of 7 keys are counters"
    assert sum(words.startswith("SCAN") for words in asked) == counters.PAGES == 100
    empty, _ = counted(pages([], 10**9))
    assert empty == Counters(0, 0)
    untold, _ = counted(pages(NAMES, 10**9, total=Failure("no")))
    assert untold is not None
    assert untold.count == 500, "those that were seen"


def test_what_a_server_does_not_tell_of_its_counters() -> None:
    assert counted(lambda _: Failure("no", code="NOPERM"))[0] is None
    nothing, _ = counted(pages([b"shop:a"], 1))
    assert nothing == Counters(0, 0)
    unweighed, _ = counted(pages(NAMES, 1, size=Failure("no")))
    assert unweighed == Counters(5, None)
    assert unweighed is not None
    assert unweighed.shown == "5"
    assert Counters(1_234_567, 142_460_000).shown == "1,234,567 (142.5 MB)"


# ---- what the servers are for -------------------------------------------------------------------

THREE = ("redis://a", "redis://b", "redis://c")


@pytest.mark.parametrize(
    ("nodes", "options", "max_ttl", "wanted"),
    [
        (THREE, {}, None, Purpose(3, 10.0, 0.25, "asynclock:", Acks(), 2.0)),
        (THREE[:1], {"ttl": 60}, None, Purpose(1, 60.0, 0.25, "asynclock:", Acks(), 2.0)),
        (THREE[:1], {"ttl": 2}, None, Purpose(1, 10.0, 0.25, "asynclock:", Acks(), 2.0)),
        (
            THREE[:1],
            {"ttl": 60, "max_ttl": 90, "restart_guard": "disk"},
            None,
            Purpose(1, 90.0, 0.25, "asynclock:", Acks(), 2.0, disks_kept=True),
        ),
        (
            THREE[:1],
            {"max_ttl": 90, "node_timeout": 2, "acks": "all", "durable": True, "prefix": "x:"},
            20.0,
            Purpose(1, 20.0, 2.0, "x:", Acks("all", durable=True), 2.0),
        ),
    ],
)
def test_servers_are_judged_by_the_settings_of_the_services(
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[str, ...],
    options: dict[str, Any],
    max_ttl: float | None,
    wanted: Purpose,
) -> None:
    purposes: list[Purpose] = []

    async def probe(endpoint: Endpoint, url: str, purpose: Purpose) -> Probe:
        purposes.append(purpose)
        return Probe(endpoint, url, login=False, down=Failure("gone"))

    monkeypatch.setattr(command, "probe", probe)
    asyncio.run(command._examine(Settings(nodes, options), 2.0, max_ttl))
    assert purposes == [wanted] * len(nodes)


def test_locks_are_tried_where_nothing_is_known_to_prevent_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what is found on the way to a server is a finding too."""
    reported: dict[str, dict[str, Any]] = {
        "good": {},
        "warned": {"config": {"timeout": "30"}},
        "differs": {"kept": Kept(1, NodeSet(3, ("x:1", "y:1", "z:1")).text(), "x:1")},
        "bad": {"offset": 100.0},
        "gone": {"down": Failure("gone")},
    }
    tried: list[str] = []

    async def probe(endpoint: Endpoint, url: str, _: Purpose) -> Probe:
        return Probe(endpoint, url, login=True, **reported[endpoint.host])

    async def use_everything(_: Settings, url: str) -> dict[str, str]:
        tried.append(url)
        return {"event": f"of {url}"}

    resolve = command.resolve

    async def noted(url: str) -> Group:
        group = await resolve(url)
        if "nobody" in url:
            return Group(findings=group.findings)
        return group

    monkeypatch.setattr(command, "probe", probe)
    monkeypatch.setattr(command, "use_everything", use_everything)
    monkeypatch.setattr(command, "resolve", noted)
    nodes = tuple(f"redis://{name}" for name in (*reported, "nobody"))
    servers, findings = asyncio.run(command._examine(Settings(nodes), 1.0, None))
    assert tried == ["redis://good", "redis://warned", "redis://differs"]
    assert [server.endpoint.host for server in servers] == list(reported)
    found = {(one.code, one.node.partition(":")[0], one.severity) for one in findings}
    assert found >= {
        ("cannot-event", "good", Severity.WARNING),
        ("cannot-event", "warned", Severity.WARNING),
        ("idle-timeout", "warned", Severity.WARNING),
        ("clock-offset", "bad", Severity.ERROR),
        ("unreachable", "gone", Severity.ERROR),
    }
