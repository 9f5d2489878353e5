"""Run by `nox -s package` with the Python of a fresh environment: what a user gets works.

    python -I installed.py bare|demo|fastapi PAGE|arq PAGE|oldest

Imports nothing of the test suite, and asynclock only as it was installed.
"""

import asyncio
import importlib.metadata
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener


def check_surface() -> None:
    import asynclock

    for name in asynclock.__all__:
        assert getattr(asynclock, name) is not None, name
    assert asynclock.__version__ == importlib.metadata.version("asynclock")
    folder = Path(asynclock.__file__).parent
    assert "site-packages" in folder.parts, f"not the installed one: {folder}"
    assert (folder / "py.typed").is_file()
    assert list(folder.rglob("*.lua")), "the scripts were left out of the package"


def check_help_without_extras() -> None:
    """The command says which extra it lacks, without a traceback."""
    answer = subprocess.run(
        [Path(sys.executable).with_name("asynclock"), "--version"], capture_output=True, text=True
    )
    assert "Traceback" not in answer.stderr, answer.stderr
    assert answer.returncode == 0 or "asynclock[cli]" in answer.stderr, answer


def check_command() -> None:
    program = Path(sys.executable).with_name("asynclock")
    for arguments in (["--version"], ["--help"], ["run", "--help"]):
        subprocess.run([program, *arguments], check=True, capture_output=True)


async def check_locks() -> None:
    """Acquire, extend, refuse, release, on a real server with these versions."""
    import asynclock
    from asynclock.testing import local_servers

    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        for nodes in (urls[:1], urls):
            async with asynclock.connect(*nodes, restart_guard=False) as locks:
                async with locks.lock("installed", timeout=5.0) as lease:
                    await lease.extend()
                    assert lease.held
                    others = asyncio.create_task(locks.lock("installed").try_acquire())
                    assert await others is None
                second = await locks.lock("installed").acquire(timeout=5.0)
                assert second.fence > lease.fence
                assert await second.release()


async def check_tools() -> None:
    """The commands for operators, on a real server."""
    from asynclock.testing import local_servers

    program = Path(sys.executable).with_name("asynclock")
    async with local_servers(1) as [server]:
        for arguments in (["inspect", "--all", "--json"], ["inspect", "x"], ["top", "--once"]):
            command = [program, *arguments, "--node", server.url]
            subprocess.run(command, check=True, capture_output=True)
        command = [program, "doctor", "--json", "--watch", "0.2", "--node", server.url]
        answer = subprocess.run(command, capture_output=True)  # the status tells of findings
        assert json.loads(answer.stdout)["version"] == 1, answer


async def check_the_server() -> None:
    """The server comes with the extra: no other is on this machine."""
    from asynclock.testing import find_server

    assert find_server().path.is_relative_to(sys.prefix), find_server()


def check_demo() -> None:
    """The README's first command, to its end."""
    program = Path(sys.executable).with_name("asynclock")
    subprocess.run([program, "demo"], check=True, capture_output=True, timeout=300)


async def check_blocking() -> None:
    """The blocking face, with this version of anyio."""
    from asynclock import blocking
    from asynclock.testing import local_servers

    def use(url: str) -> None:
        with blocking.connect(url) as locks, locks.lock("installed", timeout=5) as lease:
            assert lease.held

    async with local_servers(1) as [server]:
        await asyncio.to_thread(use, server.url)


SOCKET = """
from fastapi import WebSocket

@app.websocket("/orders/{order_id}")
async def watch(socket: WebSocket, lease: Annotated[Lease, Locked("orders:{order_id}")]) -> None:
    await socket.accept()
    await socket.send_text(str(lease.fence))
"""


async def check_fastapi(page: str) -> None:
    """The first program of docs/web.md, served by what the extra brings, and a WebSocket."""
    from asynclock.testing import local_servers
    from asynclock.testing.servers.process import ReservedPort

    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0] + SOCKET

    with tempfile.TemporaryDirectory() as folder, ReservedPort() as port:
        async with local_servers(1) as [server]:
            text = program.replace("redis://localhost:6379", server.url)
            await asyncio.to_thread(Path(folder, "shop.py").write_text, text)
            command = [sys.executable, "-m", "uvicorn", "--port", str(port), "shop:app"]
            process = subprocess.Popen(command, cwd=folder)
            try:
                fences = [await asyncio.to_thread(ask, port) for _ in range(2)]
                fences.append(await ask_by_socket(port))
            finally:
                process.terminate()
                process.wait(30)
    assert 0 < fences[0] < fences[1] < fences[2]


async def ask_by_socket(port: int) -> int:
    from websockets.asyncio.client import connect

    # A socket of our own goes past a proxy with every version; `proxy=None` needs version 15.
    connection = socket.create_connection(("127.0.0.1", port))
    async with connect(f"ws://127.0.0.1:{port}/orders/42", sock=connection) as orders:
        return int(await orders.recv())


def ask(port: int) -> int:
    opener = build_opener(ProxyHandler({}))
    end = time.monotonic() + 60
    while True:
        try:
            address = f"http://127.0.0.1:{port}/orders/42/ship"
            with opener.open(Request(address, method="POST"), timeout=10) as answer:
                return int(json.load(answer)["fence"])
        except URLError:
            assert time.monotonic() < end, "no answer"
            time.sleep(0.1)


async def check_arq(page: str) -> None:
    """The program of docs/with-other-libraries.md: a worker that ends when its queue is empty."""
    from arq import create_pool
    from arq.worker import create_worker

    from asynclock.testing import local_servers

    (program,) = re.findall(r"::check_arq -->\n```python\n(.*?)```", page, re.DOTALL)
    async with local_servers(1) as [server]:
        names: dict[str, Any] = {}
        exec(program.replace("redis://localhost:6379", server.url), names)
        settings = names["WorkerSettings"]
        pool = await create_pool(settings.redis_settings)
        jobs = [await pool.enqueue_job("ship", 42) for _ in range(3)]
        worker = create_worker(settings, burst=True, handle_signals=False)
        await worker.async_run()
        fences = {await job.result(timeout=10) for job in jobs}
        assert len(fences) == 3, fences
        await worker.close()
        await pool.aclose()


def main() -> None:
    mode = sys.argv[1]
    check_surface()
    if mode == "bare":
        check_help_without_extras()
    else:
        asyncio.run(check_the_server())
    if mode == "demo":
        check_command()
        asyncio.run(check_tools())
        check_demo()
    if mode == "arq":
        asyncio.run(check_arq(Path(sys.argv[2]).read_text()))
    if mode == "fastapi":
        asyncio.run(check_fastapi(Path(sys.argv[2]).read_text()))
    if mode in {"demo", "oldest"}:
        asyncio.run(check_locks())
        asyncio.run(check_blocking())
    versions = {name: importlib.metadata.version(name) for name in ("redis", "hiredis", "anyio")}
    print(f"{mode}: asynclock {importlib.metadata.version('asynclock')} with {versions}")


if __name__ == "__main__":
    main()
