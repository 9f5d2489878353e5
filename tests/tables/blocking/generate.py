"""Writes asynclock/blocking/__init__.py from the asynchronous classes: `nox -s generate`.

The methods of the classes for threads that only pass their arguments on have the parameters and the
docstrings of the asynchronous methods, without `await` and `async`, and with threads in the place
of tasks. Of a docstring the file has the first line; `describe` adds the rest at the import. What a
thread does in another way is written by hand in the classes they inherit from.
"""

import ast
import functools
import inspect
import itertools
import re
import runpy
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asynclock
from asynclock._primitives import base, synchronized

PACKAGE = Path(asynclock.__file__).parent / "blocking"
FILE = PACKAGE / "__init__.py"
# Not imported, because the file that is to be written may be out of date.
for_threads = runpy.run_path(str(PACKAGE / "_words.py"))["for_threads"]

FOOTER = """
for _name in set(__all__) - {"LockSettings"}:
    describe(globals()[_name], getattr(asynclock, _name))
describe(Acquirable, base.Acquirable)
describe(Holding.release, asynclock.Lease.release)
"""

BASES = {
    "Acquirable": "Enterable[L]",
    "Lease": "Holding",
    "MultiLease": "Lease",
    "ReentrantLease": "Lease",
    "Lock": "Acquirable[Lease]",
    "FairLock": "Lock",
    "ReentrantLock": "Acquirable[ReentrantLease]",
    "MultiLock": "Acquirable[MultiLease]",
    "Semaphore": "Lock",
    "SemaphorePermits": "Acquirable[MultiLease]",
    "Run": "Holding",
    "Once": "Acquirable[Run]",
    "ReadWriteLock": "Face",
    "SharedEvent": "Face",
    "Latch": "Face",
    "Barrier": "Face",
    "LockManager": "Bridge",
}
"""The classes, in the order of the file, and what each inherits from."""
BY_HAND = {"on_lost", "on_wanted", "release", "part", "name"}
NO_METHOD = {"adopt", "task", "wait_lost", "wanted", "aclose", "election"}
"""What threads don't have: tests/blocking/test_faces.py has the reasons."""
NO_PARAMETER = {"inherit", "interrupt"}
SIDES = {"ReadLock": "Lock", "WriteLock": "Lock"}
OBTAINED_BY = {"upgrade": "write().", "downgrade": "read()."}


@dataclass
class Member:
    """A public method, property or attribute of an asynchronous class."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | None
    type: str
    doc: str


@functools.cache
def members(cls: type) -> dict[str, Member]:
    """Return the public members of a class, those of its bases first."""
    found: dict[str, Member] = {}
    for each in reversed(cls.__mro__):
        if not each.__module__.startswith("asynclock"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for one in (*attributes(tree), *functions(tree)):
            if not one.name.startswith("_") or one.name == "__call__":
                found[one.name] = one
    return found


def functions(tree: ast.ClassDef) -> Iterator[Member]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returned = ast.unparse(node.returns) if node.returns else ""
            yield Member(node.name, node, returned, ast.get_docstring(node) or "")


def attributes(tree: ast.ClassDef) -> Iterator[Member]:
    """Find what `__init__` declares as `self.name: type = …`, with the docstring behind it."""
    init = next((one for one in tree.body if getattr(one, "name", "") == "__init__"), None)
    body = init.body if isinstance(init, ast.FunctionDef) else []
    for node, text in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            said = text.value if isinstance(text, ast.Expr) else None
            doc = inspect.cleandoc(str(said.value)) if isinstance(said, ast.Constant) else ""
            yield Member(node.target.attr, None, ast.unparse(node.annotation), doc)


def docstring(doc: str, *, whole: bool = False) -> str:
    """Return a docstring in the words for threads: its first line, or the `whole` on one line."""
    text = for_threads(doc)
    text = " ".join(text.split()) if whole else text.partition("\n")[0]
    return f'"""{text}"""'


def asynchronous(cls: str) -> type:
    """Return the class of which `cls` is the counterpart."""
    found: type = base.Acquirable if cls == "Acquirable" else getattr(asynclock, cls)
    return found


def written(cls: str) -> str:
    """Return the source of a class."""
    theirs, ours = asynchronous(cls), BASES[cls]
    manager = cls == "LockManager"
    above = ours.partition("[")[0]
    known = members(asynchronous(above)).keys() if above in BASES else set()
    own = [
        method(one, manager=manager)
        for name, one in members(theirs).items()
        if name not in known | BY_HAND | NO_METHOD
    ]
    parts = [docstring(inspect.getdoc(theirs) or "")]
    state = ["__slots__ = ()"] if cls.endswith("Lease") else []
    if own and hasattr(asynclock, cls) and not manager:
        state += [f"_inner: asynclock.{'AnyLease' if cls == 'Lease' else cls}"]
    if lease := re.search(r"\[(.*Lease|Run)\]", ours):
        state += [f"_lease = {lease[1]}"]
    parts += ["\n".join(state)] if state else []
    made_by = re.search(r"^@_settings\.made_by\(.*\)$", inspect.getsource(theirs), re.MULTILINE)
    head = f"{made_by[0]}\n" if made_by else ""
    body = "\n\n".join(textwrap.indent(part, "    ") for part in [*parts, *own])
    return f"{head}class {cls}({ours}):\n{body}\n"


def connect() -> str:
    """Return the source of `connect`."""
    (node,) = ast.parse(inspect.getsource(asynclock.connect)).body
    assert isinstance(node, ast.FunctionDef)
    parameters, passed = signature(node, among=0)
    doc = docstring(inspect.getdoc(asynclock.connect) or "")
    made = f"return LockManager(locks=connect_asynchronously({passed}))"
    body = textwrap.indent(f"{doc}\n{made}", "    ")
    return f"def connect({parameters}) -> LockManager:\n{body}\n"


def typed(cls: type) -> str:
    """Return the source of a class of settings."""
    source = re.sub(r" +interrupt: bool\n.*\n", "", inspect.getsource(cls))
    return re.sub(r"\btask\b", "thread", source)


def method(one: Member, *, manager: bool) -> str:
    """Return the source of a method or property."""
    returned = SIDES.get(one.type, one.type)
    returned = re.sub(r"^AcquireContext\[(.*)\]$", r"\1", returned)
    returned = re.sub(r"^AsyncIterator\b", "list", returned)
    returned = re.sub(r"\b(?:Awaitable|Coroutine)\[(?:Any, Any, )?R\]", "R", returned)
    ours, theirs = ("self", "self._locks") if manager else ("self._manager", "self._inner")
    value, head = f"{theirs}.{one.name}", f"@property\ndef {one.name}(self)"
    if one.node and not one.node.decorator_list:
        parameters, passed = signature(one.node)
        head = f"def {one.name}({parameters})"
        later = f"lambda: {value}({passed})" if passed else value
        if one.name == "synchronized":
            value = "synchronized(partial(self.lock, **settings), template, lease)"
        elif one.name == "__call__":
            inner = re.sub(r"self\._(?=for_key|lease)", "self._inner._", ast.unparse(one.node))
            run = re.sub(r"(self\S+_for_key\(key\))", r"Once(self._manager, inner=\1)", inner)
            return without_await(run)
        elif one.name == "resume":
            value = f"Lock(self, inner={theirs})._obtain({later})"
        elif "L" in returned.split() or (returned == "Lease" and "lease" in parameters):
            value = f"self.{OBTAINED_BY.get(one.name, '')}_obtain({later})"
        elif returned in BASES:
            value = f"{returned}({ours}, inner={value}({passed}))"
        elif returned != one.type:
            value = f"{ours}.call(lambda: listed({value}({passed})))"
        elif isinstance(one.node, ast.AsyncFunctionDef):
            undo = f", undo={ours}.reclaim" if one.name == "detach" else ""
            value = f"{ours}.call({later}{undo})"
        else:
            value = f"self.call(lambda: answer({later}))" if manager else f"{value}({passed})"
    if returned == "Lease | None" and one.node is None:
        value = f"None if {value} is None else Lease({ours}, inner={value})"
    if returned == "tuple[Lease, ...]":
        value = f"tuple(Lease({ours}, inner=one) for one in {value})"
    result = value if returned == "None" else f"return {value}"
    body = textwrap.indent(f"{docstring(one.doc, whole=one.node is None)}\n{result}", "    ")
    return f"{head} -> {returned}:\n{body}"


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, among: int = 1) -> tuple[str, str]:
    """Return the parameters of a method, and how it passes them on."""
    given = node.args
    kept = [
        (one, default)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if one.arg not in NO_PARAMETER
    ]
    silent = len(kept) < len(given.kwonlyargs) or ast.unparse(given).count("**settings")
    given.kwonlyargs, given.kw_defaults = [one for one, _ in kept], [value for _, value in kept]
    passed = ["behind(lease)" if one.arg == "lease" else one.arg for one in given.args[among:]]
    passed += [f"*{given.vararg.arg}"] if given.vararg else []
    passed += [f"{one.arg}={one.arg}" for one in given.kwonlyargs]
    passed += [f"**{given.kwarg.arg}"] if given.kwarg else []
    passed += ["interrupt=False"] if silent else []
    return ast.unparse(given), ", ".join(passed)


def without_await(source: str) -> str:
    """Return the source of a function whose body is the same for threads."""
    source = re.sub(r"\b(?:Awaitable\[|Coroutine\[Any, Any, )R\]", "R", for_threads(source))
    return source.replace("await ", "")


def generated() -> str:
    """Return the source of the file; its lines may be too long.

    What comes before the first class is written by hand, in the file itself.
    """
    by_hand = FILE.read_text("utf-8").partition("\nclass ")[0]
    kinds = (base.HoldSettings, base.WaitSettings, base.LockSettings, base.MutexSettings)
    decorate = without_await(inspect.getsource(synchronized.synchronized))
    parts = [*map(typed, kinds), *map(written, BASES), decorate, connect(), FOOTER]
    return "\n\n".join([by_hand.strip(), *parts])


def main() -> None:
    """Write the file."""
    form = ["ruff", "format", "--stdin-filename", str(FILE), "-"]
    shaped = subprocess.run(form, input=generated(), text=True, check=True, stdout=subprocess.PIPE)
    FILE.write_text(shaped.stdout)


if __name__ == "__main__":
    main()
