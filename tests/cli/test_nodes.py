"""`asynclock nodes`: the record, steps, and what `doctor` says of them."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.fleet import Fleet, FleetState
from asynclock.testing import LocalServer, memory_node
from asynclock.testing.memory.commands import ReplyError
from asynclock.testing.plugin import StartServers
from tests.engine.virtual_nodes import instead
from tests.waiting import in_virtual_time

from . import schema
from .conftest import NODES, Here, Outcome, Program, until
from .terminal import Session

FAST: dict[str, Any] = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.5}


def name(server: LocalServer) -> str:
    return f"{server.host}:{server.port}"


async def test_what_doctor_prints_can_be_pasted_once_the_passwords_are_in(
    program: Program, asynclock_servers: StartServers
) -> None:
    servers = await asynclock_servers(3)
    named = ["--prefix", "{shop}:"]
    for server in servers:
        await server.command(*"ACL SETUSER me on >canary ~* &* +@all".split())
        named += ["--node", server.url_for("me", "canary")]
    ended = await program("doctor", "--json", "--watch", "0.2", *named, env={})
    found = json.loads(ended.out)["findings"]
    (fix,) = (one["fix"] for one in found if one["code"] == "set-unrecorded")
    assert "canary" not in ended.out
    pasted = [word.replace("***", "canary") for word in shlex.split(fix)]
    ended = await program(*pasted[1:], env={})
    assert ended.status == 0, ended.err
    ended = await program("nodes", "--json", *named, env={})
    assert set(json.loads(ended.out)["record"]["nodes"]) == set(map(name, servers))


async def test_the_installed_tools_say_who_they_are_and_hold_up_no_step(
    program: Program, asynclock_servers: StartServers
) -> None:
    """They use the old set, as an old client does, but hold no lock."""
    installed = str(Path(sys.executable).with_name("asynclock"))
    servers = await asynclock_servers(4)
    program.use(servers[:3], **FAST)
    assert (await program("nodes", "record")).status == 0
    ended = await program("nodes", "add", servers[3].url)
    assert ended.status == 0, ended.err
    seen: set[str] = set()

    async def told(tool: str) -> bool:
        lines = await servers[0].command("CLIENT", "LIST")
        seen.update(found[1] for found in re.finditer(r":[\w.-]+:\d+:(\w+) ", lines))
        return tool in seen

    await servers[2].freeze()
    while not await told("inspect"):
        short = await program.start("inspect", "--all", by=[installed])
        while short.returncode is None and not await told("inspect"):
            await asyncio.sleep(0.01)
        await program.finish(short)
    await servers[2].thaw()
    top = Session(program, command=(installed, "top"))
    serve = await program.start("serve", "--port", "0", by=[installed])
    try:
        await top.shows("0 held")
        await until(lambda: told("top"), "top is connected")
        await until(lambda: told("serve"), "serve is connected")
        program.use(servers, **FAST)
        ended = await program("nodes", "finish")
        assert ended.status == 0, ended.err
        assert serve.returncode is None
        assert await top.end() == 64, "it doesn't freeze: the record refuses its set now"
        assert "the fleet uses" in top.screen
    finally:
        top.close()
    assert seen == {"inspect", "top", "serve"}


# ---- on nodes in memory --------------------------------------------------------------------------
OLD, NEW = NODES, (*NODES, "memory://d")
THREE, FOUR = ("{" + ", ".join(urls) + "}" for urls in (OLD, NEW))


def fleet(urls: Sequence[str] = OLD, **more: Any) -> Fleet:
    return Fleet(*urls, restart_guard=False, ttl=1.0, max_ttl=4.0, **more)


@in_virtual_time
async def test_of_two_operators_at_once_one_succeeds() -> None:
    async with fleet() as one, fleet() as other:
        await one.record()
        steps = (one.add("memory://d"), other.add("memory://e"))
        ended = await asyncio.gather(*steps, return_exceptions=True)
        (won,) = (result for result in ended if isinstance(result, FleetState))
        (lost,) = (result for result in ended if not isinstance(result, FleetState))
        assert isinstance(lost, asynclock.ConfigurationError)
        assert "another step is open" in str(lost)
        assert won.record is not None
        assert (await one.show()).record == won.record


class Scene:
    """Nodes with a record after some steps, of which some then go; others list these clients."""

    def __init__(self, *steps: str, forget: str = "", dead: str = "", mute: str = "") -> None:
        self.steps, self.forget, self.dead, self.mute = steps, forget, dead, mute
        self.listed: Any = b""

    def lists(self, reply: Any) -> "Scene":
        self.listed = reply
        return self

    async def __call__(self) -> None:
        for step in self.steps:
            await self.play(step)
        for url in self.forget:
            await memory_node(url).command("DEL", "asynclock::#set")
        for url in NEW:
            instead(memory_node(url), self.lists_clients)
        for url in self.dead:
            memory_node(url).kill()
        for url in self.mute:
            memory_node(url).freeze()

    async def play(self, step: str) -> None:
        waiting = asyncio.Event()
        async with fleet(progress=lambda _: waiting.set()) as one:
            match step:
                case "record":
                    await one.record()
                case "begin to record":
                    recording = asyncio.ensure_future(one.record())
                    await asyncio.sleep(0.5)  # half of the time that clients get to read it
                    recording.cancel()
                case "add":
                    await one.add("memory://d")
                case "add while b is away":
                    memory_node("b").freeze()
                    await one.add("memory://d")
                    memory_node("b").restart(keep_data=True)
                    memory_node("b").born_ago(100.0)
                case "begin to finish":
                    async with fleet(NEW, progress=lambda _: waiting.set()) as new:
                        finishing = asyncio.ensure_future(new.finish())
                        await waiting.wait()
                        finishing.cancel()

    def lists_clients(self, words: Any) -> Any:
        return self.listed if words[:2] == (b"CLIENT", b"LIST") else None


def nodes(here: Here, scene: Any, *words: str, urls: Sequence[str] = OLD) -> Outcome:
    named = [word for url in urls for word in ("--node", url)]
    return here("nodes", *words, "--max-ttl", "4", *named, scene=scene)


NOBODY = ReplyError("NOPERM this user has no permissions")
GIVEN = " ".join(f"--node {url}" for url in OLD) + " --max-ttl 4\n"
ADDED = (
    f"epoch 2: {THREE}\nopen step to {FOUR}: start all clients with it, then\n"
    f"  asynclock nodes finish {GIVEN}or take the step back:\n  asynclock nodes back {GIVEN}"
)
CASES: dict[str, tuple[Scene, str, int, str]] = {
    "no record": (
        Scene(),
        "show",
        0,
        f"no record; this command writes it:\n  asynclock nodes record {GIVEN}",
    ),
    "a first record": (Scene(), "record", 0, f"epoch 1: {THREE}\nnode"),
    "a record": (Scene("record"), "show", 0, f"epoch 1: {THREE}\nnode"),
    "no clients that are listed": (Scene().lists(NOBODY), "record --force", 0, "epoch 1: "),
    "a step": (Scene("record"), "add memory://d", 0, ADDED),
    "a step that is open": (Scene("record", "add"), "show", 0, ADDED),
    "a step in two": (Scene("record"), "replace memory://a memory://d", 0, ADDED),
    "a step that was taken": (Scene("record", "add"), "replace memory://a memory://d", 0, ADDED),
    "a step back": (Scene("record", "add"), "back", 0, f"epoch 3: {THREE}\nnode"),
    "a step that ends": (Scene("record", "add"), "finish", 0, f"epoch 3: {FOUR}\nnode"),
    "a removal": (Scene("record"), "remove memory://c", 64, "at least 3 nodes"),
    "a step that is closing": (
        Scene("record", "add", "begin to finish"),
        "show",
        0,
        (
            f"epoch 3: {FOUR}\nclosing step from {THREE}; this goes on:\n"
            f"  asynclock nodes finish {GIVEN}"
        ),
    ),
    "one is dead": (Scene("record", dead="c"), "show", 0, f"epoch 1: {THREE}\n"),
    "most are dead": (Scene("record", dead="bc"), "show", 69, f"epoch 1: {THREE}\n"),
    "only warned": (
        Scene("begin to record"),
        "show",
        0,
        (
            f"epoch 0: {THREE}\nclients that differ are only warned; this refuses them:\n"
            f"  asynclock nodes record {GIVEN}"
        ),
    ),
    "no record to change": (
        Scene(),
        "back",
        64,
        f"write it with `asynclock nodes record {GIVEN[:-1]}`",
    ),
    "half are dead": (Scene(dead="bc"), "show", 69, "the record is unknown: too few"),
    # What can't be done.
    **{
        words: (Scene("record"), words, 64, said)
        for words, said in {
            "show x": "write `asynclock nodes show`",
            "add": "write `asynclock nodes add URL`",
            "add x y": "write `asynclock nodes add URL`",
            "replace x": "write `asynclock nodes replace NODE URL`",
            "finish x": "write `asynclock nodes finish`",
            "remove redis://nowhere:1": "is not one of",
            "add redis://127.0.0.1:1": "can't be added",
            "finish": "no step is open",
            "back": "no step is open",
        }.items()
    },
    "clients that nobody lists": (
        Scene("record", "add").lists(NOBODY),
        "finish",
        64,
        "or use force",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_and_can_be_done_next(case: str, here: Here) -> None:
    scene, words, status, said = CASES[case]
    urls = NEW if "add" in scene.steps and words in ("finish", "back") else OLD
    ended = nodes(here, scene, *words.split(), urls=urls)
    assert ended.status == status, ended.err
    if status == 64:
        assert said in ended.err
    else:
        assert ended.out.startswith(said)


def test_a_set_that_is_refused_is_named_once(here: Here) -> None:
    named = [word for url in (*OLD[:2], "memory://d") for word in ("--node", url)]
    ended = here("release", "a", "--ask", *named, scene=Scene("record"))
    assert (ended.status, ended.err.count(f"the fleet uses {THREE}")) == (64, 1)


STEPS = "record", "add while b is away"
LISTED = b"id=1 name=asynclock:0a1b:web-1 age=3\n"


def test_what_each_node_keeps_and_each_client_uses(here: Here) -> None:
    scene = Scene(*STEPS, forget="c", mute="d").lists(LISTED)
    ended = nodes(here, scene, urls=NEW)
    _, _, table = ended.out.partition("\nnode ")
    assert [re.split("  +", line) for line in f"node {table}".splitlines()] == [
        ["node", "called", "epoch", "keeps"],
        ["memory://a", "memory://a", "2", "the newest record"],
        ["memory://b", "memory://b", "1", "an older record"],
        ["memory://c", "memory://c", "no record"],
        ["memory://d", "memory://d", "unknown: no answer to the login within node_timeout=1 s"],
        ["client", "uses"],
        ["web-1", "other set"],
    ]


@pytest.mark.parametrize(
    ("reply", "last", "clients"),
    [
        (NOBODY, "clients: no node shows them (CLIENT LIST)", None),
        (b"", "memory://c  memory://c  1      the newest record", []),
        (LISTED, "web-1   other set", [{"label": "web-1", "uses": "other"}]),
    ],
    ids=["not listed", "none", "one"],
)
def test_the_clients_are_shown_last(reply: Any, last: str, clients: Any, here: Here) -> None:
    assert nodes(here, Scene("record").lists(reply)).out.splitlines()[-1] == last
    found = json.loads(nodes(here, Scene("record").lists(reply), "--json").out)
    schema.check(found, "nodes")
    assert found["clients"] == clients


def test_programs_see_who_lags(here: Here) -> None:
    found = json.loads(nodes(here, Scene(*STEPS, forget="c"), "--json").out)
    schema.check(found, "nodes")
    assert [one["lags"] for one in found["nodes"]] == [False, True, True]
    assert (found["record"]["phase"], found["record"]["other"]) == ("open", list(NEW))


@pytest.mark.parametrize(
    ("words", "seconds"), [((), 1.0), (("--node-timeout", "3"), 3.0), (("--max-ttl", "2"), 0.5)]
)
def test_a_node_has_as_long_as_asked_and_a_share_of_the_longest_ttl(
    words: tuple[str, ...], seconds: float, here: Here
) -> None:
    named = [word for url in OLD for word in ("--node", url)]
    here("nodes", *words, *named, scene=Scene("record", mute="c"))
    assert here.seconds % seconds < 0.05
    assert here.seconds / seconds < 5
