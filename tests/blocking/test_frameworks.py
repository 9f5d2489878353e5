"""The programs that docs/blocking.md shows for Celery and Django, as they are printed there."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, python_blocks

PAGE = ROOT / "docs" / "blocking.md"
NODE = "redis://localhost:6379"
pytestmark = pytest.mark.once


def program(test: str, urls: list[str]) -> str:
    """The block of the page that names this test, on these nodes."""
    (block,) = [b for b in python_blocks(PAGE) if b.shown_by and b.shown_by.endswith(f"::{test}")]
    nodes = ", ".join(map(repr, urls))
    return block.text.replace(f'connect("{NODE}"', f"connect({nodes}, restart_guard=False")


SAVE = """
import json, os, time

def save(order_id, fence):
    began = time.monotonic()
    time.sleep(0.1)
    line = json.dumps([os.getpid(), fence, began, time.monotonic()])
    with open({file!r}, "a") as file:
        file.write(line + "\\n")
"""


@pytest.mark.timeout(180)  # a program that imports Celery, on a busy machine
def test_celery(urls: list[str], tmp_path: Path) -> None:
    """Two forked children, four tasks on one order: one after the other."""
    saved = tmp_path / "saved"
    text = program("test_celery", urls).replace(
        'broker="redis://localhost:6379/1"', 'broker="filesystem://"'
    )
    for folder in ("queue", "control"):
        (tmp_path / folder).mkdir()
    options = {
        "data_folder_in": str(tmp_path / "queue"),
        "data_folder_out": str(tmp_path / "queue"),
        "control_folder": str(tmp_path / "control"),
        "polling_interval": 0.05,
    }
    configured = f"app.conf.broker_transport_options = {options!r}"
    (tmp_path / "shop.py").write_text(f"{SAVE.format(file=str(saved))}\n{text}\n{configured}\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "C_FORCE_ROOT": "1"}
    words = "worker -P prefork -c 2 --without-gossip --without-mingle --without-heartbeat".split()
    asking = (
        f"from shop import app, ship\nfor _ in range(4): ship.delay(42)\napp.worker_main({words})"
    )
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-c", asking], env=env, cwd=tmp_path, stderr=log, stdout=log
        )
    try:
        end = time.monotonic() + 45
        while not saved.exists() or len(saved.read_text().splitlines()) < 4:
            running = worker.poll() is None
            assert running, (tmp_path / "log").read_text()
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.05)
    finally:
        worker.terminate()
        try:
            worker.wait(30)
        finally:
            worker.kill()
            worker.wait()
    rows = sorted((json.loads(line) for line in saved.read_text().splitlines()), key=lambda r: r[2])
    for before, after in itertools.pairwise(rows):
        assert before[1] < after[1], "two at once"
        assert before[3] <= after[2], "two at once"


def test_django(urls: list[str], tmp_path: Path) -> None:
    """Requests in threads: 200 for the first, 409 for those that come while it runs."""
    (tmp_path / "views.py").write_text(program("test_django", urls))
    text = """
    import sys
    from concurrent.futures import ThreadPoolExecutor

    import django
    from django.conf import settings

    settings.configure(ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], SECRET_KEY="x")
    django.setup()

    from django.test import Client
    from django.urls import path
    import views

    urlpatterns = [path("orders/<int:order_id>/ship", views.ship)]

    def ask():
        return Client().post("/orders/42/ship").status_code

    assert ask() == 200
    with views.locks.lock("orders:42"), ThreadPoolExecutor(4) as pool:
        assert [one.result() for one in [pool.submit(ask) for _ in range(4)]] == [409] * 4
    with ThreadPoolExecutor(4) as pool:
        assert [one.result() for one in [pool.submit(ask) for _ in range(4)]] == [200] * 4
    """
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", textwrap.dedent(text)]
    found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)
    assert found.returncode == 0, found.stderr
