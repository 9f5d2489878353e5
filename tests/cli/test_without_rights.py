"""Commands whose user may not see the keys say so, and exit with 69."""

from __future__ import annotations

import pytest

from asynclock.testing import LocalServer

from .conftest import Program
from .terminal import Session

RIGHTS = "+hello +auth +ping +client +info +time +script +command +config|get".split()


async def without_rights(server: LocalServer) -> str:
    await server.command("ACL", "SETUSER", "weak", "on", ">secret", "resetchannels", *RIGHTS)
    return server.url.replace("redis://", "redis://weak:secret@")


@pytest.mark.parametrize(
    "command", [["top", "--once"], ["inspect", "--all"], ["inspect", "a"], ["serve", "--port", "0"]]
)
async def test_it_says_what_is_missing(
    program: Program, asynclock_nodes: list[LocalServer], command: list[str]
) -> None:
    program.use([await without_rights(asynclock_nodes[0])])
    found = await program(*command)
    assert found.status == 69
    assert "NOPERM" in found.err
    assert "`asynclock doctor` names the rights that it lacks" in found.err


async def test_so_does_a_top_that_is_left(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    program.use(asynclock_nodes)
    session = Session(program, "top", "--node", await without_rights(asynclock_nodes[0]))
    try:
        await session.shows("NOPERM")
        session.type("q")
        assert await session.end() == 69
    finally:
        session.close()
