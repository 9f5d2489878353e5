"""A terminal that lacks letters of a name shows them as escapes."""

import os
import subprocess
import sys

import pytest

from asynclock.testing import LocalServer


@pytest.mark.parametrize(
    "command", [["inspect", "zähler→"], ["inspect", "--all"], ["top", "--once"]]
)
async def test_a_name_that_the_terminal_cannot_show(
    asynclock_nodes: list[LocalServer], command: list[str]
) -> None:
    key = "asynclock:zähler→".encode()
    await asynclock_nodes[0].command("SET", key, "0" * 32 + ":h:1", "PX", 60000)
    found = subprocess.run(
        [sys.executable, "-m", "asynclock", *command, "--node", asynclock_nodes[0].url],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert r"z\xe4hler\u2192" in found.stdout
