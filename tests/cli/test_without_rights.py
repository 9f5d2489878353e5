"""Commands whose user may not see the keys say so, and exit with 69."""

from __future__ import annotations

import pytest

from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.docs.blocks import ROOT

from .conftest import PATIENCE, Program, until
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


async def test_the_operators_user_of_the_manifest_lacks_nothing(
    program: Program, asynclock_servers: StartServers
) -> None:
    lines = (ROOT / "deploy" / "users.acl").read_text("utf-8").splitlines()
    users = [line.removeprefix("user ") for line in lines]
    servers = await asynclock_servers(1, users=users)
    program.use([server.url_for("operator", "change-me-too") for server in servers])
    for command in (["inspect", "--all"], ["inspect", "a"], ["top", "--once"], ["nodes"]):
        found = await program(*command)
        assert found.status == 0, found.err
        assert "NOPERM" not in found.err + found.out
    assert "rights" not in (await program("doctor")).out
    running = await program.start("run", "a", "sleep", str(PATIENCE))
    await until(lambda: servers[0].command("GET", "asynclock:a"), "the lock is held")
    assert (await program("release", "a", "--force", "--yes")).status == 0
    assert (await program.finish(running)).status == 70
