"""Which tests can notice a mutant: those that run its lines, the fastest first."""

import ast
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.mutation.mutant import ROOT, Mutant
from tests.mutation.recording import AT_IMPORT, REACH

FAR = 3.0
"""How many times its time a test counts that is not of the mutant's package: of 539 mutants that
draws had caught, seven more are caught within 12 seconds."""
MISSING = "nothing was recorded yet: run `nox -s tests-3.13` first, all of it"


class Reach:
    """What the session that measures coverage recorded."""

    def __init__(self, path: Path = REACH) -> None:
        if not path.exists():
            raise SystemExit(MISSING)
        with gzip.open(path, "rt") as file:
            found = json.load(file)
        self.seconds: dict[str, float] = {}
        self._sets: dict[str, list[tuple[frozenset[int], list[str]]]] = defaultdict(list)
        tests: list[list[str]] = [[] for _ in found["sets"]]
        for test, seconds, sets in found["tests"]:
            if test != AT_IMPORT:
                if not _exists(test):
                    continue  # the record may be older than the tests
                self.seconds[test] = seconds
            for number in sets:
                tests[number].append(test)
        for (file, lines), ran in zip(found["sets"], tests, strict=True):
            self._sets[file].append((frozenset(lines), ran))

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that can notice a mutant, the fastest first.

        Those of the mutant's package come earlier. A case of a test function counts with the time
        of its faster cases, so that others come in between. Of what runs when a module is imported,
        tests come first whose file has the text, then those that import the module. All tests of
        the package can notice it: they count like others.
        """
        named, direct = set[str](), set[str]()
        found = self._at(mutant.file, mutant.place.lines)
        if mutant.place.runs_at_import:
            script = mutant.file.endswith(".lua")
            modules = loaders(mutant.file) if script else [mutant.file]
            direct = set(self._in_files_that_import(modules))
            if mutant.operator == "constant" and len(mutant.old) > 6:
                named = set(self._in_files_with(re.escape(mutant.old.strip("'\""))))
            found |= {test for one in modules for test in self._at(one, _inside_functions(one))}
        _, folder, *deeper = Path(mutant.file).parts
        near = f"/{folder.strip('_') if deeper else 'user'}/"
        ours = {test for test in self.seconds if near in test}
        others = ours - found - direct if AT_IMPORT in found else set()
        spent: dict[str, float] = defaultdict(float)
        ranked = []
        chosen = (found | direct | named | others) - {AT_IMPORT}
        for test in sorted(chosen, key=lambda one: (self.seconds[one], one)):
            function = test.partition("[")[0]
            spent[function] += self.seconds[test] * (1 if test in ours - others else FAR)
            ranked.append((test not in named, test not in direct, spent[function], test))
        return [test for *_, test in sorted(ranked)]

    def _at(self, file: str, lines: Iterable[int]) -> set[str]:
        wanted = frozenset(lines)
        return {test for ran, tests in self._sets[file] if ran & wanted for test in tests}

    def _in_files_that_import(self, modules: Iterable[str]) -> Iterator[str]:
        imports = [
            rf"^from {folder.replace('/', '.')}(?:\.{name} import | import .*\b{name}\b)"
            for folder, _, name in (one.removesuffix(".py").rpartition("/") for one in modules)
        ]
        return self._in_files_with("|".join(imports))

    def _in_files_with(self, text: str) -> Iterator[str]:
        for file in {test.partition("::")[0] for test in self.seconds}:
            if re.search(text, (ROOT / file).read_text("utf-8"), re.MULTILINE):
                yield from (test for test in self.seconds if test.startswith(f"{file}::"))


def _exists(test: str) -> bool:
    file, name, *_ = test.partition("[")[0].split("::")
    return name in _names(file)


@cache
def _names(file: str) -> frozenset[str]:
    path = ROOT / file
    text = path.read_text("utf-8") if path.exists() else ""
    return frozenset(re.findall(r"\b[Tt]est\w+", text))  # a table's runner may have made them


@cache
def _inside_functions(file: str) -> frozenset[int]:
    tree = ast.parse((ROOT / file).read_bytes())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node for node in ast.walk(tree) if isinstance(node, functions))
    return frozenset(
        line for node in bodies for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    )


@cache
def loaders(script: str) -> list[str]:
    """Return the modules that load a script: they name it, or a constant that has its name."""
    trees = {path: ast.parse(path.read_bytes()) for path in (ROOT / script).parent.rglob("*.py")}
    assigned = [
        (path, statement)
        for path, tree in trees.items()
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
    ]
    names, found = {Path(script).name}, set()
    for _ in range(3):  # a constant, in a tuple, that a module loads
        for path, statement in assigned:
            if statement.value is None or not names & _words(statement.value):
                continue
            if isinstance(statement.value, ast.Call):
                found.add(str(path.relative_to(ROOT)))
            elif isinstance(statement.value, (ast.Constant, ast.Tuple)):
                names |= _words(statement) - _words(statement.value)
    return sorted(found)


def _words(node: ast.AST) -> set[str]:
    """Return the constants that are named in some code, and its texts."""
    nodes = list(ast.walk(node))
    names = {one.id for one in nodes if isinstance(one, ast.Name) and one.id.isupper()}
    return names | {Path(str(one.value)).name for one in nodes if isinstance(one, ast.Constant)}
