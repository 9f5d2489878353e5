"""A forked child sends nothing on inherited connections, and doesn't count as the holder."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from asynclock.testing import LocalServer, make_certificates, until
from tests.access.test_connections import tls_in_front

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

UNTOUCHED = {"held": True, "owner": True, "same_links": True, "lost": 0}


async def start(case: str, *urls: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.engine.forking",
        case,
        *urls,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def said(case: str, *urls: str) -> list[dict[str, Any]]:
    """What the program and its children said, line by line."""
    program = await start(case, *urls)
    out, _ = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("n", [1, 3])
async def test_a_child_that_leaves_releases_nothing(
    asynclock_nodes: list[LocalServer], n: int
) -> None:
    child, parent = await said("leaves", *(node.url for node in asynclock_nodes[:n]))
    refused = "ConfigurationError"
    assert child == {
        "held": False,
        "leases": 0,
        "released": False,
        "said": [refused, refused, "LeaseLostError", refused],
    }
    assert parent == {"child": 0, **UNTOUCHED}


@pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="from Python 3.14 on, asyncio does not let a forked child leave the event loop",
)
async def test_nor_does_one_that_leaves_the_event_loop(urls: list[str]) -> None:
    (parent,) = await said("exits", *urls)
    assert parent == {"child": 7, **UNTOUCHED}


async def test_nor_does_one_with_tls(asynclock_nodes: list[LocalServer], tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with tls_in_front(asynclock_nodes[0], certificates) as (port, _):
        url = f"rediss://localhost:{port}?ssl_ca_certs={quote(str(certificates.ca))}"
        _, parent = await said("leaves", url)
    assert parent == {"child": 0, **UNTOUCHED}


async def test_a_child_of_a_thread_uses_its_own_manager(asynclock_nodes: list[LocalServer]) -> None:
    inherited, child, parent = await said("from_a_thread", asynclock_nodes[0].url)
    reason = "it belongs to the process that forked this one"
    assert inherited == {"said": [reason] * 3, "kept": False}
    assert child == {"free": False}
    assert parent == {"child": 0, **UNTOUCHED}


async def test_no_connection_stays_open_in_a_child(asynclock_nodes: list[LocalServer]) -> None:
    node = asynclock_nodes[0]
    program = await start("outlives", node.url)
    assert program.stdout is not None
    assert json.loads(await asyncio.wait_for(program.stdout.readline(), 30)) == {"closed": True}

    async def alone() -> bool:
        return len((await node.command("CLIENT", "LIST", "TYPE", "normal")).splitlines()) == 1

    await until(alone, "the connection is closed although the child lives")
    out, _ = await asyncio.wait_for(program.communicate(b"\n"), 30)
    assert json.loads(out) == {"child": 0}


async def test_a_manager_made_before_the_fork_works_in_each_child(
    asynclock_nodes: list[LocalServer],
) -> None:
    first, second = await said("preloads", asynclock_nodes[0].url)
    assert first["label"]
    assert second["label"]
    assert first["random"] != second["random"]
