"""Imports run one way, and each dangerous power lives in one module.

The layers are the reading order of the package. A module may import from its own layer and
from those before it; what only one module may do (read time, make tasks, talk to Redis) is
listed below with the reason.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from asynclock._engine.grant import Grant

PACKAGE = Path(__file__).parents[1] / "asynclock"

# First match wins; the number is the layer. Leaves (observe, testing, …) may use everything.
LAYERS = [
    (0, ("asynclock.errors", "asynclock.events", "asynclock._clock", "asynclock._process")),
    (0, ("asynclock._keys", "asynclock._settings")),
    (1, ("asynclock._rules",)),
    (5, ("asynclock._nodes.deployment",)),
    (4, ("asynclock._nodes.cluster",)),
    (3, ("asynclock._nodes.replicated",)),
    (2, ("asynclock._nodes",)),
    (6, ("asynclock._engine",)),
    (9, ("asynclock._primitives.kinds",)),
    (8, ("asynclock._primitives.shared",)),
    (7, ("asynclock._primitives",)),
    (10, ("asynclock._inspect.survey", "asynclock._inspect.takeback")),
    (11, ("asynclock.manager",)),
    (12, ("asynclock._inspect", "asynclock.fleet")),
    (13, ("asynclock",)),
]

# Parts of the standard library and of our dependencies that only some modules may import.
CONFINED = {
    "time": ("asynclock._clock",),
    "redis": ("asynclock._nodes",),
    "hiredis": ("asynclock._nodes",),
}
# Leaves talk to servers and clocks on their own account: they are not on the way of a lock.
LEAVES = (
    *("asynclock.blocking", "asynclock.testing", "asynclock.cli"),
    *("asynclock.contrib", "asynclock.fencing", "asynclock.observe"),
)
# Leaves that another leaf builds on: one way, so that no two depend on each other.
BUILT_ON = {
    "asynclock.cli": {"asynclock.contrib", "asynclock.testing"},
    "asynclock.contrib": {"asynclock.fencing"},
}
# Leaves that a module of the core imports, once somebody asks for them.
DOORS = {
    "asynclock.__main__": {"asynclock.cli"},
    "asynclock.manager": {"asynclock.testing.memory"},  # `connect("memory://")`
}
# Tools that look at managers from outside, through `engine_of` and public names only.
OUTSIDERS = ("asynclock._inspect", "asynclock.cli", "asynclock.contrib")
# Decisions are plain functions of what they are given.
PURE = "asynclock._rules"
IMPURE = {"asyncio", "anyio", "redis", "hiredis", "time", "random", "secrets", "os", "socket"}

TASK_MAKERS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
TASK_MAKER = "asynclock._process"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, path


MODULES = dict(modules())
CORE = [name for name in MODULES if not any(name.startswith(leaf) for leaf in LEAVES)]


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer(module: str) -> int:
    return next(n for n, packages in LAYERS if any(inside(module, p) for p in packages))


def is_leaf(module: str) -> bool:
    return any(inside(module, leaf) for leaf in LEAVES)


def type_checking_only(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:` names types; at run time it imports nothing."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not type_checking_only(child):
            yield child
            yield from walk(child)


def absolute(module: str, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imported(module: str, path: Path) -> frozenset[str]:
    """Every module that this one imports, in absolute terms."""
    found: set[str] = set()
    for node in walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, path, node)
            full = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else base for name in full}
    return frozenset(found)


@functools.cache
def named(module: str) -> frozenset[str]:
    """Every module of the package that this one imports, for types only or at run time."""
    found: set[str] = set()
    for node in ast.walk(tree(MODULES[module])):
        if isinstance(node, ast.ImportFrom):
            base = absolute(module, MODULES[module], node)
            full = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else base for name in full}
    return frozenset(found & MODULES.keys() - {module})


def circles(package: str) -> set[frozenset[str]]:
    """Return the groups of modules in `package` that import each other in a circle."""
    own = {module for module in MODULES if inside(module, package)}
    reach = {module: set(named(module) & own) for module in own}
    for middle in own:
        for module in own:
            if middle in reach[module]:
                reach[module] |= reach[middle]
    return {
        frozenset(other for other in own if other in reach[module] and module in reach[other])
        for module in own
        if module in reach[module]
    }


def test_no_imports_run_in_a_circle() -> None:
    """An import that only type checkers follow counts: a reader follows it, too."""
    assert circles("asynclock") == set()


@pytest.mark.parametrize("room", sorted({path.parent for path in MODULES.values()}))
def test_a_room_has_few_modules_and_none_is_long(room: Path) -> None:
    long = [path for path in room.glob("*.py") if len(path.read_text("utf-8").splitlines()) > 600]
    assert long in ([], [PACKAGE / "blocking" / "__init__.py"]), "which is generated"
    assert len([*room.glob("[a-z]*.py"), *room.glob("_[a-z]*.py")]) <= 15


@pytest.mark.parametrize("module", CORE)
def test_only_a_grant_changes_itself(module: str) -> None:
    """What the nodes granted changes in named steps, which are methods of Grant."""
    slots = set(Grant.__slots__)
    written = [
        ast.unparse(node)
        for node in ast.walk(tree(MODULES[module]))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if node.attr in slots and ast.unparse(node.value).endswith("grant")
    ]
    assert not written, f"{module} writes {written}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    own = layer(module)
    upward = [
        name
        for name in imported(module, MODULES[module])
        if inside(name, "asynclock") and layer(name) > own
        if name not in DOORS.get(module, ())
    ]
    assert not upward, f"{module} (layer {own}) imports from above: {upward}"


@pytest.mark.parametrize("module", CORE)
def test_the_core_does_not_know_its_leaves(module: str) -> None:
    leaves = {name for name in imported(module, MODULES[module]) if is_leaf(name)}
    assert leaves == DOORS.get(module, set()), module
    nodes = ast.walk(tree(MODULES[module]))
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert not any(isinstance(word, str) and is_leaf(word) for word in words), "by its name"


@pytest.mark.parametrize("module", [m for m in MODULES if is_leaf(m)])
def test_leaves_build_on_each_other_one_way(module: str) -> None:
    own = next(leaf for leaf in LEAVES if inside(module, leaf))
    others = {
        leaf for name in imported(module, MODULES[module]) for leaf in LEAVES if inside(name, leaf)
    }
    assert others <= {own} | BUILT_ON.get(own, set())


@pytest.mark.parametrize("module", [m for m in MODULES if any(inside(m, o) for o in OUTSIDERS)])
def test_tools_use_no_private_attribute_of_a_manager(module: str) -> None:
    nodes = ast.walk(tree(MODULES[module]))
    private = [ast.unparse(node) for node in nodes if _is_private(node)]
    assert set(private) <= {"os._exit"}


def _is_private(node: ast.AST) -> bool:
    """Whether this is `other._name`."""
    if not isinstance(node, ast.Attribute) or not re.match("_[^_]", node.attr):
        return False
    return ast.unparse(node.value) not in {"self", "cls"}


@pytest.mark.parametrize("module", CORE)
def test_confined_imports(module: str) -> None:
    tops = {name.split(".")[0] for name in imported(module, MODULES[module])}
    strays = {
        top
        for top in tops & CONFINED.keys()
        if not any(inside(module, allowed) for allowed in CONFINED[top])
    }
    assert not strays, f"{module} imports {strays}; only {CONFINED} may"


@pytest.mark.parametrize("module", [m for m in MODULES if inside(m, PURE)])
def test_rules_are_pure(module: str) -> None:
    path = MODULES[module]
    tops = {name.split(".")[0] for name in imported(module, path)}
    assert not tops & IMPURE
    awaits = [n for n in ast.walk(tree(path)) if _suspends(n)]
    assert not awaits, f"{module} awaits in line {getattr(awaits[0], 'lineno', '?')}"


def _suspends(node: ast.AST) -> bool:
    return isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef))


@pytest.mark.parametrize("module", [m for m in CORE if m != TASK_MAKER])
def test_only_background_makes_tasks(module: str) -> None:
    made = [
        node.lineno
        for node in walk(tree(MODULES[module]))
        if isinstance(node, ast.Call) and _called(node) in TASK_MAKERS
    ]
    assert not made, f"{module} makes tasks in lines {made}; ask {TASK_MAKER}"


@pytest.mark.parametrize("module", [m for m in CORE if m != "asynclock._clock"])
def test_only_the_clock_reads_time(module: str) -> None:
    """`loop.time()` is a clock too: the wrong one for a lease, since it stops in a suspend."""
    read = list(_clock_readings(tree(MODULES[module])))
    assert not read, f"{module} reads a clock in lines {read}; ask asynclock._clock"


def _clock_readings(tree: ast.AST) -> Iterator[int]:
    """Lines that read a clock other than to set one of the loop's own timers."""
    calls = [node for node in walk(tree) if isinstance(node, ast.Call)]
    timers = [call for call in calls if _called(call) in {"call_at", "reschedule", "timeout_at"}]
    setting = {id(node) for timer in timers for node in ast.walk(timer) if node is not timer}
    yield from (call.lineno for call in calls if _reads_clock(call) and id(call) not in setting)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _reads_clock(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in {"time", "now", "utcnow"}:
        return False
    owner = ast.unparse(node.func.value)
    return owner.split(".")[-1] in {"loop", "_loop", "get_running_loop()", "datetime"}


def test_the_checks_bite() -> None:
    """A check that cannot fail proves nothing: the helpers see what they are meant to see."""
    assert layer("asynclock._rules.quorum") < layer("asynclock._nodes.link")
    text = "loop.time(); asyncio.create_task(x); scope.reschedule(loop.time())"
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert len(list(_clock_readings(ast.parse(text)))) == 1
    assert any(_called(call) in TASK_MAKERS for call in calls)
    relative = ast.parse("from ..manager import LockManager").body[0]
    assert isinstance(relative, ast.ImportFrom)
    path = Path("asynclock/_rules/quorum.py")
    assert absolute("asynclock._rules.quorum", path, relative) == "asynclock.manager"
