"""An application whose locks are wrong, under a real server: it doesn't start, and says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asynclock.testing.servers.ports import ReservedPort
from tests.docs.blocks import ROOT

ABOVE = """
@locked("orders:{order_id}")
@app.post("/orders/{order_id}")
async def ship(order_id: int) -> None: ...
"""
LATE = """
@late.post("/orders/{order_id}")
@locked("orders:{oder_id}")
async def ship(order_id: int) -> None: ...
"""
SHOP = """
from fastapi import FastAPI
from asynclock.contrib.fastapi import locked, setup

app, late = FastAPI(), FastAPI()
setup(app, "memory://shop")
app.mount("/late", late)
"""


@pytest.mark.timeout(180)  # a server that imports a framework, on a busy machine
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (ABOVE, "route /orders/{order_id} takes no lock: put @locked below the route's decorator"),
        (LATE, "'oder_id'"),
    ],
    ids=["above the route", "no such variable"],
)
def test_plain_uvicorn_says_what_is_wrong_and_exits(wrong: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP + wrong)
    with ReservedPort() as port:
        command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port)]
        ended = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 3, ended.stderr
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr
