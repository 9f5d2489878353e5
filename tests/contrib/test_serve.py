"""`asynclock serve` beside services: the settings that must agree with theirs, and its address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import asynclock
from asynclock._access import node_access
from asynclock._inspect.survey import ask
from asynclock._nodes.script import Command
from asynclock.fleet import Fleet
from asynclock.testing import LocalServer
from tests.contrib.conftest import PATIENT
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def serve(
    nodes: list[LocalServer], *options: str, token: str | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Run the program; yield a client that has its token, and the address that it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCLOCK_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "asynclock", "serve", "--port", "0", *options),
            *(word for node in nodes for word in ("--node", node.url)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**env, **({"ASYNCLOCK_TOKEN": token} if token else {})},
    )
    assert process.stdout
    try:
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        (given,) = parse_qs(urlsplit(address).fragment)["token"]
        headers = {"Authorization": f"Bearer {given}"}
        url = address.partition("#")[0]
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            yield client, address
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 30)
        process.stdout.close()


async def state(client: httpx.AsyncClient) -> Any:
    return (await client.get("/state")).json()


@pytest.mark.timeout(240)
async def test_settings_that_differ_are_no_red_alarm(asynclock_nodes: list[LocalServer]) -> None:
    """New servers have no vote by the page's settings, and by those of the services they have."""
    urls = [node.url for node in asynclock_nodes]
    async with (
        serve(asynclock_nodes, "--max-ttl", "3600") as (client, _),
        asynclock.connect(*urls, **PATIENT) as services,
    ):

        async def level() -> str | None:
            trouble = (await state(client))["trouble"]
            return trouble and trouble["level"]

        assert await level() == "red"

        async def seems_to_differ() -> Any:
            async with services.lock("jobs"):
                trouble = (await state(client))["trouble"]
                return trouble["level"] == "amber" and trouble["text"]

        text = await until(seems_to_differ, every=0.2)
    assert "clients go on locking, such as 'jobs'" in text
    assert "--restart-guard" in text


@pytest.mark.timeout(240)
async def test_the_settings_of_the_services_are_taken(asynclock_nodes: list[LocalServer]) -> None:
    options = ("--max-ttl", "3600", "--restart-guard", "off", "--prefix", "other:")
    urls = [node.url for node in asynclock_nodes]
    async with (
        serve(asynclock_nodes, *options) as (client, _),
        asynclock.connect(*urls, **PATIENT, prefix="other:") as services,
        services.lock("jobs"),
    ):
        found = await state(client)
    assert [one["name"] for one in found["locks"]] == ["jobs"]
    assert (found["trouble"], found["doubts"]) == (None, [])


@pytest.mark.timeout(240)
async def test_a_prefix_and_a_ttl_that_seem_to_differ_are_named(
    asynclock_nodes: list[LocalServer],
) -> None:
    urls = [node.url for node in asynclock_nodes]
    off = ("--restart-guard", "off")
    async with asynclock.connect(*urls, **PATIENT) as services, services.lock("jobs"):
        async with serve(asynclock_nodes, *off, "--prefix", "another:") as (client, _):
            (prefix,) = (await state(client))["doubts"]
        async with serve(asynclock_nodes, *off, "--max-ttl", "5") as (client, _):
            (ttl,) = (await state(client))["doubts"]
    assert "no key begins with 'another:'" in prefix
    assert "--prefix" in prefix
    assert "more than the max_ttl of 5 s" in ttl
    assert "--max-ttl" in ttl


@pytest.mark.parametrize(
    "options", [("--restart-guard", "maybe"), ("--acks", "some"), ("--max-ttl", "-1")]
)
def test_a_setting_that_makes_no_sense_is_refused(options: tuple[str, str]) -> None:
    words = [sys.executable, "-m", "asynclock", "serve", "--node", "redis://127.0.0.1:1", *options]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 64
    assert options[0].removeprefix("--") in done.stderr.replace("_", "-")


@pytest.mark.timeout(240)
async def test_a_token_of_ones_own_is_in_the_address_once(
    asynclock_nodes: list[LocalServer],
) -> None:
    token = "mine & with 100 % signs"
    async with serve(asynclock_nodes, token=token) as (client, address):
        assert (await client.get("/state")).status_code == 200
        assert parse_qs(urlsplit(address).fragment) == {"token": [token]}
        assert (await client.get("/favicon.ico")).status_code == 200


@pytest.mark.timeout(240)
async def test_it_names_itself_to_the_nodes(asynclock_nodes: list[LocalServer]) -> None:
    """So that `nodes finish` knows that it holds no lock."""
    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(*urls, **PATIENT) as locks, Fleet(*urls) as fleet:
        await fleet.record(force=True)
        async with serve(asynclock_nodes, "--restart-guard", "off") as (client, _):
            await state(client)
            node = node_access(locks).nodes[0]

            async def named() -> bool:
                listed = await ask(node, Command.plain("CLIENT", "LIST"))
                return b":serve " in listed

            await until(named)
            (tool,) = [one for one in (await fleet.show()).clients or () if not one.holds]
            assert tool.label.endswith(":serve")
