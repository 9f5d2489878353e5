"""Everything the documentation says in code is run; everything it points at exists."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

import asynclock
from asynclock import blocking
from asynclock.testing import LocalServer, local_servers
from tests.docs import blocks, drawings

RUN = {
    str(page.relative_to(blocks.ROOT)): page
    for page in blocks.pages()
    if any(not block.shown_by for block in blocks.python_blocks(page))
}
ALL = {str(page.relative_to(blocks.ROOT)): page for page in blocks.pages()}
SERVERS = 5
# What a reader does next with the functions that a page defines.
THEN_CALL = {
    "README.md": (
        "await buy(42)",
        "await work('mail')",
        "await thread(ship, 42) is None",
        "await thread(waiting.close) is None",
    ),
    "docs/index.md": ("await buy(42)",),
    "docs/web.md": ("(await post(app, '/orders/42/ship'))['fence'] > 0",),
}
BLOCKING = {"docs/blocking.md"}
"""Pages for programs without an event loop."""


def asyncio_free(block: blocks.Block, namespace: dict[str, object]) -> None:
    """Run a block to its end in a thread where no event loop runs."""
    with contextlib.suppress(StopIteration):
        blocks.run(block, namespace).send(None)
        raise AssertionError(f"{block.place}: this page awaits nothing")


async def post(app: FastAPI, path: str) -> Any:
    """The answer of a page's application to a POST, in this task."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


class StandIns:
    """Lets the hosts that a page names be servers of this machine, each name one of them."""

    def __init__(self, servers: list[LocalServer]) -> None:
        self.servers = servers
        self.names: dict[str, str] = {}
        self.managers: list[asynclock.LockManager] = []

    def url(self, url: str) -> str:
        parts = urlsplit(url)
        if parts.hostname == "127.0.0.1" or parts.scheme == "memory":
            return url  # the page started its own
        if parts.scheme != "redis" or "," in parts.netloc:
            raise AssertionError(f"{url}: let a named test show this block (tests/docs/blocks.py)")
        return self.names.setdefault(parts.netloc, self.servers[len(self.names)].url)

    def connect(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def connect(*nodes: Any, **settings: Any) -> Any:
            found = [self.url(node) if isinstance(node, str) else node for node in nodes]
            # The stand-ins are seconds old and would not vote yet.
            manager = real(*found, **{**settings, "restart_guard": False})
            if isinstance(manager, asynclock.LockManager):
                self.managers.append(manager)
            return manager

        return connect


@pytest.fixture
async def stand_ins(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIns]:
    async with local_servers(SERVERS) as servers:
        stand_ins = StandIns(servers)
        real_from_url = Redis.from_url
        monkeypatch.setattr(asynclock, "connect", stand_ins.connect(asynclock.connect))
        monkeypatch.setattr(blocking, "connect", stand_ins.connect(blocking.connect))
        monkeypatch.setattr(
            Redis, "from_url", lambda url, **kw: real_from_url(stand_ins.url(url), **kw)
        )
        yield stand_ins
        for manager in stand_ins.managers:
            await manager.aclose()


@pytest.mark.parametrize("page", RUN)
async def test_the_code_of_a_page_runs(
    page: str, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module as any other: taskiq looks for that of a task.
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks.python_blocks(RUN[page]):
        if block.shown_by is None and page in BLOCKING:
            await asyncio.to_thread(asyncio_free, block, namespace)
        elif block.shown_by is None:
            await blocks.run(block, namespace)
    namespace |= {"post": post, "thread": asyncio.to_thread}  # for THEN_CALL
    for call in THEN_CALL.get(page, ()):
        await blocks.run(blocks.Block(RUN[page], 1, "python", f"assert {call}", None), namespace)


@pytest.mark.parametrize("page", ALL)
def test_no_block_escapes(page: str) -> None:
    for block in blocks.blocks(ALL[page]):
        known = block.language in {"python", *blocks.OTHER_LANGUAGES}
        directive = re.fullmatch(r"\{[\w-]+\}", block.language)
        assert known or directive, f"{block.place}: fence in {block.language!r} is neither"
        assert block.language not in {"{code-block}", "{code}"}, f"{block.place}: use ```python"
    indented = blocks.indented_code(ALL[page])
    assert not indented, f"{page}: code without a fence is not run, lines {indented}"


@pytest.mark.parametrize("page", ALL)
def test_named_tests_exist(page: str) -> None:
    named = blocks.TEST_NAME.findall(ALL[page].read_text("utf-8"))
    missing = [test for test in named if not blocks.exists(test)]
    assert not missing, f"{page} names tests that are not there: {missing}"


@pytest.mark.parametrize("page", ALL)
def test_relative_links_lead_somewhere(page: str) -> None:
    path = ALL[page]
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", path.read_text("utf-8"))
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert not missing, f"{page} links to {missing}"


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_drawing_is_the_one_that_the_script_draws(name: str) -> None:
    kept = (drawings.STATIC / f"{name}.svg").read_text("utf-8")
    assert kept == drawings.DRAWINGS[name].svg(), "run `python -m tests.docs.drawings`"


def test_decisions_that_the_code_points_at_exist() -> None:
    written = {path.name[:4] for path in (blocks.ROOT / "docs" / "decisions").glob("0*.md")}
    for path in sorted((blocks.ROOT / "asynclock").rglob("*.py")):
        named = set(re.findall(r"docs/decisions/(\d{4})", path.read_text("utf-8")))
        assert named <= written, f"{path.relative_to(blocks.ROOT)}: {named - written}"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """What a newcomer is told to type is what continuous integration types."""
    script = (blocks.ROOT / ".ci" / "run").read_text("utf-8").replace("-qq ", "")
    consoles = [b.text for b in blocks.blocks(blocks.ROOT / "README.md") if b.language == "console"]
    (command,) = [text for text in consoles if text.endswith("/nox")]
    for step in command.removeprefix("$ ").split(" && "):
        assert step in script, f"{step!r} is not what .ci/run does"


def test_the_checks_bite(tmp_path: Path) -> None:
    """A block is found, claimed and executed as this file says, and a wrong name is seen."""
    page = tmp_path / "page.md"
    page.write_text("<!-- shown by: tests/no.py::test -->\n```python\n1/0\n```\n\n```py\n```\n")
    claimed, escaped = blocks.blocks(page)
    page.write_text("- a list\n\n    its text\n\nwords\n\n    code()\n")
    assert blocks.indented_code(page) == [7]
    assert (claimed.shown_by, claimed.line) == ("tests/no.py::test", 3)
    assert (escaped.language, escaped.shown_by) == ("py", None)
    assert not blocks.exists("tests/no.py::test")
    assert not blocks.exists("tests/docs/test_snippets.py::test_that_nobody_wrote")
    assert blocks.exists("tests/docs/test_snippets.py::test_the_checks_bite")
