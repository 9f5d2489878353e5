"""What `inspect` and `top` say when nodes are missing, and on terminals of any size."""

import json

from tests.contrib.apps import client_for

from .conftest import Program
from .schema import check
from .terminal import Session
from .test_inspect import locks_of

LONG = "orders:shipping:eu-central-1:customer-0042:invoice"


async def test_every_json_output_keeps_to_its_schema(program: Program) -> None:
    async with locks_of(program.nodes) as locks:
        lease = await locks.lock("a").acquire()
        slot = await locks.semaphore("pool", 2).acquire()
        await locks.event("bell").set()
        await locks.latch("done", 3).count_down()
        await program.nodes[2].kill()
        all_, one, free, pool, bell, doctor, nothing = await program.each(
            ("inspect", "--all", "--json"),
            ("inspect", "a", "--json"),
            ("inspect", "free", "--json"),
            ("inspect", "pool", "--json"),
            ("inspect", "bell", "--json"),
            ("doctor", "--json", "--watch", "0.2"),
            ("release", "gone", "--force", "--yes", "--json"),
        )
        released = await program("release", "a", "--force", "--yes", "--json")
        bench = await program(
            "bench", "--json", "--seconds", "0.05", "--rounds", "1", "--tasks", "2"
        )
        async with client_for(locks, "http://localhost") as client:
            page = (await client.get("/state")).json()
        await slot.release()
        await lease.release()
    check(json.loads(all_.out), "inspect --all")
    for shown in (one, free, pool, bell):
        check(json.loads(shown.out), "inspect")
    check(json.loads(doctor.out), "doctor")
    check(json.loads(nothing.out), "release")
    check(json.loads(released.out), "release")
    loads = json.loads(bench.out)
    check(loads, "bench")
    assert [row["errors"] for row in loads["loads"]] == [{}] * 3
    assert all(0 < row["p50"] <= row["p99"] <= row["p999"] for row in loads["loads"])
    names = await program.nodes[0].command("KEYS", "asynclock:bench:*")
    assert [
        left for key in names if (left := await program.nodes[0].command("PTTL", key)) < 0
    ] == []
    check(page, "page")


async def test_what_is_cut_ends_with_an_ellipsis(program: Program) -> None:
    label = "worker-eu-central-1a.production.example.org:31337:ship"
    async with locks_of(program.nodes, label) as locks:
        lease = await locks.lock(LONG).acquire()
        for width in ("40", "80", "200"):
            terminal = {"FORCE_COLOR": "1", "COLUMNS": width, "NO_COLOR": "1"}
            for words in (("inspect", "--all"), ("top", "--once"), ("inspect", LONG)):
                shown = (await program(*words, env={**program.settings, **terminal})).out
                whole = LONG in shown.replace("\n", "") and label in shown
                assert ("…" in shown, whole) == (width == "80", width != "80"), shown
                assert max(map(len, shown.splitlines())) <= max(int(width), 67)
                assert LONG[:29] in shown or width == "40"
                assert ("fence" in shown) == (width != "80" or LONG in words)
                if words == ("inspect", LONG) and width == "80":
                    sentence = " by process 31337 on worker-eu-central-1a.production.example.org, "
                    assert sentence in shown.replace(" \n", " "), "lines end between two words"
        session = Session(program, "inspect", "--all", size=(24, 80))  # a real one
        try:
            assert await session.end() == 0
        finally:
            session.close()
        assert "…" in session.screen
        await lease.release()
