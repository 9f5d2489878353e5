"""Finds the code blocks of the documentation and runs them as a reader would.

A page is one program: its `python` blocks run in order, in one namespace, with `await` allowed at
the top level, against real servers that stand in for the hosts the page names. A block that cannot
run like that (it needs Sentinel, a browser, an hour) names the test that shows it instead:

    <!-- shown by: tests/deployments/test_sentinel.py::test_failover -->
    ```python
    ...
    ```

Fences in languages that nobody has thought about fail, so that no block escapes by its spelling.
"""

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}|:{3,})(?P<info>[^`\n]*)$")
SHOWN_BY = re.compile(r"<!-- shown by: (?P<test>\S+) -->")
TEST_NAME = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")

# Languages that a reader does not run as Python; directives of the site are `{name}`.
OTHER_LANGUAGES = {
    *("", "console", "html", "http", "ini", "json", "lua", "mermaid", "sql", "text", "toml", "yaml")
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    shown_by: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page; `line` is that of its first line of content."""
    lines = iter(enumerate(page.read_text("utf-8").splitlines(), start=1))
    claim = None
    for number, line in lines:
        if found := SHOWN_BY.search(line):
            claim = found["test"]
        elif opening := FENCE.match(line):
            content = []
            for _, inner in lines:
                if inner.strip() == opening["ticks"]:
                    break
                content.append(inner.removeprefix(opening["indent"]))
            language = opening["info"].strip().split(" ")[0]
            yield Block(page, number + 1, language, "\n".join(content), claim)
            claim = None
        elif line.strip():
            claim = None


def indented_code(page: Path) -> list[int]:
    """Lines where code begins by indentation alone; text that belongs to a list is no code."""
    found, fence, before, blank = [], "", "", False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        if fence or (opening := FENCE.match(line)):
            if not fence:
                fence = opening["ticks"] if opening else ""
            elif line.strip() == fence:
                fence = ""
        elif line.startswith("    ") and blank and not re.match(r"\s*([-*:]|\d+\.) |\s", before):
            found.append(number)
        blank = not line.strip()
        before = before if blank else line
    return found


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


async def run(block: Block, namespace: dict[str, object]) -> None:
    """Execute one block; a traceback points at the page's own lines."""
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, namespace)
    if inspect.isawaitable(result):
        await result


def exists(test: str) -> bool:
    """Whether `tests/x.py::TestClass::test_name` names a file and a definition in it."""
    path, *names = test.split("::")
    body = _statements(ROOT / path)
    if body is None:
        return False
    for name in names:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        match = next((n for n in body if isinstance(n, kinds) and n.name == name), None)
        if match is None:
            return False
        body = match.body
    return True


@functools.cache
def _statements(file: Path) -> list[ast.stmt] | None:
    return ast.parse(file.read_text("utf-8")).body if file.is_file() else None
