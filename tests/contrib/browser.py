"""A browser without a screen, driven by the WebDriver protocol over plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from asynclock.testing.servers.ports import ReservedPort

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--window-size=1100,900"
).split()


def binaries() -> tuple[str, str] | None:
    """The browser and its driver, or None where they are not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Page:
    """One tab."""

    def __init__(self, driver: httpx.AsyncClient, session: str) -> None:
        self._driver = driver
        self._session = session

    async def _post(self, what: str, **body: Any) -> Any:
        answer = await self._driver.post(f"/session/{self._session}/{what}", json=body)
        answer.raise_for_status()
        return answer.json()["value"]

    async def open(self, url: str) -> None:
        await self._post("url", url=url)

    async def run(self, script: str) -> Any:
        """What a script in the page returns; it is outside of the page's own policy."""
        return await self._post("execute/sync", script=script, args=[])

    async def look(self, width: int, *, dark: bool = False) -> None:
        """Show it in a window of this width, to somebody who prefers light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        await self._command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._command("Emulation.setEmulatedMedia", features=[scheme])

    async def _command(self, name: str, **params: Any) -> None:
        await self._post("goog/cdp/execute", cmd=name, params=params)

    async def reload(self) -> None:
        """Press F5."""
        await self._post("refresh")

    async def command(self, name: str, **parameters: Any) -> Any:
        """A command of the browser's own protocol, such as to emulate a dark screen."""
        return await self._post("goog/cdp/execute", cmd=name, params=parameters)

    async def screenshot(self, file: Path) -> None:
        answer = await self._driver.get(f"/session/{self._session}/screenshot")
        picture = base64.b64decode(answer.json()["value"])
        await asyncio.to_thread(file.write_bytes, picture)


@contextlib.asynccontextmanager
async def browse(folder: Path) -> AsyncIterator[Page]:
    """A browser of our own, with a new profile in `folder`."""
    found = binaries()
    assert found
    port = ReservedPort()
    # A short path, because the browser's socket in it must have one, and nothing stays in /tmp.
    scratch = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
    process = subprocess.Popen(
        [found[1], f"--port={port.number}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "HOME": str(folder), "TMPDIR": scratch.name},
    )
    try:
        base = f"http://127.0.0.1:{port.number}"
        async with httpx.AsyncClient(base_url=base, timeout=120, trust_env=False) as driver:
            await _until_ready(driver)
            options = {
                "binary": found[0],
                "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"],
            }
            wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
            answer = await driver.post("/session", json=wanted)
            assert answer.status_code == 200, answer.text
            session = answer.json()["value"]["sessionId"]
            yield Page(driver, session)
            await driver.delete(f"/session/{session}")
    finally:
        # The driver, and a browser that it has left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait, 30)
        scratch.cleanup()
        port.release()


async def _until_ready(driver: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await driver.get("/status")).json()["value"]["ready"]:
                    return
            await asyncio.sleep(0.05)
