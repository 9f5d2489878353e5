"""Commands whose user may not see the keys say so, and exit with 69."""

from __future__ import annotations

import subprocess
import sys

import pytest

from asynclock.testing import LocalServer

RIGHTS = "+hello +auth +ping +client +info +time +script +command +config|get".split()


@pytest.mark.parametrize(
    "command", [["top", "--once"], ["inspect", "--all"], ["inspect", "a"], ["serve", "--port", "0"]]
)
async def test_it_says_what_is_missing(
    asynclock_nodes: list[LocalServer], command: list[str]
) -> None:
    await asynclock_nodes[0].command(
        "ACL", "SETUSER", "weak", "on", ">secret", "resetchannels", *RIGHTS
    )
    url = asynclock_nodes[0].url.replace("redis://", "redis://weak:secret@")
    found = subprocess.run(
        [sys.executable, "-m", "asynclock", *command, "--node", url],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert found.returncode == 69
    assert "NOPERM" in found.stderr
    assert "`asynclock doctor` names the rights that it lacks" in found.stderr
