"""Commands whose user may not see the keys say so, and exit with 69."""

import pytest

from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.docs.blocks import ROOT

from .conftest import PATIENCE, Program, until
from .terminal import Session

LINES = (ROOT / "deploy" / "users.acl").read_text("utf-8").splitlines()
OPERATOR = LINES[1].replace("change-me-too", "PASSWORD")
RIGHTS = "+hello +auth +ping +client +info +time +script +command +config|get".split()


async def without_rights(server: LocalServer) -> str:
    await server.command("ACL", "SETUSER", "weak", "on", ">secret", "resetchannels", *RIGHTS)
    return server.url.replace("redis://", "redis://weak:secret@")


@pytest.mark.parametrize(
    "command",
    [
        *(["top", "--once"], ["inspect", "--all"], ["inspect", "a"], ["serve", "--port", "0"]),
        *(["nodes", "show"], ["release", "a", "--force", "--yes"]),
    ],
)
async def test_it_says_what_is_missing_and_what_allows_it(
    program: Program, command: list[str]
) -> None:
    program.use([await without_rights(program.nodes[0])])
    found = await program(*command)
    assert found.status == 69
    assert "NOPERM" in found.err
    assert OPERATOR in found.err
    assert OPERATOR in (ROOT / "docs" / "access.md").read_text("utf-8")


async def test_run_names_the_command_that_lists_what_is_missing(program: Program) -> None:
    program.use([await without_rights(program.nodes[0])])
    found = await program("run", "a", "true")
    assert (found.status, "`asynclock doctor` lists" in found.err) == (64, True), found.err


async def test_one_name_of_any_kind_is_found_and_released_without_scan(
    program: Program, asynclock_servers: StartServers
) -> None:
    """Otherwise a semaphore whose permits are taken would be called free."""
    (server,) = await asynclock_servers(1, users=[line.removeprefix("user ") for line in LINES])
    program.use([server.url_for("locks", "change-me")])
    running = await program.start("run", "pool", "--permits", "3", "sleep", str(PATIENCE))
    await until(lambda: server.command("KEYS", "asynclock:pool:#?"), "a permit is taken")
    found = await program("inspect", "pool")
    assert (found.status, found.err) == (0, "")
    assert "[semaphore " in found.out
    assert (await program("release", "pool", "--force", "--yes")).out.count("released") == 1
    assert (await program.finish(running)).status == 70


async def test_so_does_a_top_that_is_left(program: Program) -> None:
    session = Session(program, "top", "--node", await without_rights(program.nodes[0]))
    try:
        await session.shows("NOPERM")
        session.type("q")
        assert await session.end() == 69
    finally:
        session.close()


async def test_the_operators_user_of_the_manifest_lacks_nothing(
    program: Program, asynclock_servers: StartServers
) -> None:
    users = [line.removeprefix("user ") for line in LINES]
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
