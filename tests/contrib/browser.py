"""A browser without a screen, driven by the WebDriver protocol over plain HTTP."""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from asynclock.testing.servers.process import ReservedPort
from tests.waiting import until, until_in_thread

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

    async def text(self, name: str) -> str:
        """The text of an element that has this id."""
        return str(await self.run(f"return document.getElementById('{name}').textContent"))

    async def true(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        await until(lambda: self.run(f"return {script}"), script, timeout=60)

    async def shows(self, name: str, wanted: str) -> None:
        """Wait until an element has this text in it."""

        async def found() -> bool:
            return wanted in await self.text(name)

        await until(found, f"{wanted} in {name}", timeout=120)

    async def log_in(self, token: str) -> None:
        """Type a token, and send it."""
        await self.run(f"document.getElementById('token').value = '{token}'")
        await self.run("document.querySelector('#login button').click()")

    async def run(self, script: str) -> Any:
        """What a script in the page returns; it is outside of the page's own policy."""
        return await self._post("execute/sync", script=script, args=[])

    async def look(self, width: int, *, dark: bool = False) -> None:
        """Show it in a window of this width, to somebody who prefers light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])

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


@contextlib.contextmanager
def driven(folder: Path) -> Iterator[tuple[str, str]]:
    """Start a browser of our own, with a new profile in `folder`: its driver and its session."""
    found = binaries()
    assert found
    # A short path, because the browser's socket in it must have one, and nothing stays in /tmp.
    scratch = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
    with scratch, ReservedPort() as port:
        process = subprocess.Popen(
            [found[1], f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": str(folder), "TMPDIR": scratch.name},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=120, trust_env=False) as driver:
                until_in_thread(lambda: _is_ready(driver), timeout=60)
                flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}"]
                options = {"goog:chromeOptions": {"binary": found[0], "args": flags}}
                answer = driver.post("/session", json={"capabilities": {"alwaysMatch": options}})
                assert answer.status_code == 200, answer.text
                session = answer.json()["value"]["sessionId"]
                yield url, session
                driver.delete(f"/session/{session}")
        finally:
            # The driver, and a browser that it has left behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def _is_ready(driver: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(driver.get("/status").json()["value"]["ready"])
    return False


@contextlib.asynccontextmanager
async def tab(url: str, session: str) -> AsyncIterator[Page]:
    """The tab of a browser that runs, as a new one would be."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as driver:
        page = Page(driver, session)
        await page.open("about:blank")
        await page.look(1100)
        yield page


@contextlib.asynccontextmanager
async def browse(folder: Path) -> AsyncIterator[Page]:
    """A browser of our own for one use."""
    with driven(folder) as (url, session):
        async with tab(url, session) as page:
            yield page
