"""The built pages in a browser: nothing is cut off at three widths, or unreadable in the dark."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import unmeasured
from tests.contrib.browser import Page, binaries, browse
from tests.docs.blocks import ROOT

WIDTHS = {"phone": 390, "tablet": 900, "desktop": 1440}
PAGES = [
    *("index", "quickstart", "web", "blocking", "api", "observability"),
    *("guarantees", "deployments", "cli", "recipes", "testing"),
]
SCHEMES = ["light", "dark"]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(binaries() is None, reason="no browser and its driver on PATH"),
]

# Elements that are wider than the window and do not scroll by themselves.
TOO_WIDE = """
const wide = document.documentElement.scrollWidth - window.innerWidth;
return wide > 1 ? wide : 0;
"""
# The contrast of the text of the page to what is behind it, as WCAG defines it.
CONTRAST = """
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const text = light(getComputedStyle(document.querySelector('article p')).color);
const back = light(getComputedStyle(document.body).backgroundColor);
return [(Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05), back];
"""
# Pictures that did not load.
BROKEN = """
return [...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src);
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as `nox -s docs` builds them, or those that it has built."""
    if built := os.environ.get("ASYNCLOCK_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(ROOT / "docs"), str(folder)]
    alone = {**unmeasured.environment(), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=alone, timeout=240)
    return folder


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with browse(tmp_path) as page:
        yield page


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_pages_look_well(site: Path, page: Page, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    await page.command("Emulation.setEmulatedMedia", **media)
    for name in PAGES:
        for kind, width in (WIDTHS if scheme == "light" else {"phone": 390}).items():
            metrics: dict[str, Any] = {"deviceScaleFactor": 1, "mobile": kind == "phone"}
            await page.command(
                "Emulation.setDeviceMetricsOverride", width=width, height=1000, **metrics
            )
            await page.open((site / f"{name}.html").as_uri())
            where = f"{name} at {width} px, {scheme}"
            assert await page.run(TOO_WIDE) == 0, f"{where}: wider than the window"
            contrast, back = await page.run(CONTRAST)
            assert contrast >= 4.5, f"{where}: contrast {contrast:.1f}"
            assert (back > 0.5) == (scheme == "light"), f"{where}: background {back:.2f}"
            assert await page.run(BROKEN) == [], where
