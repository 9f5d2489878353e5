"""The generator: each operator's mutants, each a change of one place that its language reads."""

import gzip
import json
from pathlib import Path

import pytest

from tests.mutation import draw, lua, python, score
from tests.mutation.mutant import OPERATORS, Mutant
from tests.mutation.reach import Reach, loaders
from tests.mutation.recording import AT_IMPORT
from tests.mutation.runner import chosen

PYTHON = b'''\
"""A module."""


class Shop:
    """Has a counter."""

    @lru_cache(maxsize=7)
    async def sell(self, n: int, *, price: float = 0.5) -> int:
        """Sell some."""
        # \xc3\xbc: positions are bytes
        if n < 1 and not self.closed:
            raise ValueError("n is too small")
        self.sold += n
        names = [one for one in self.names if one]
        return await cast("int", self.take(n, price=price)) + len(names)
'''
LUA = b"""\
-- a comment with 1 == 2
local function take(KEYS)
  local n = tonumber(redis.call('GET', KEYS[1]) or 0)
  if n < 1 and not closed then return {0, ''} end
  redis.call('DECR', KEYS[1])
  left = n - 1
  return {1, 'ok',
    left}
end
return take(KEYS)
"""
CHANGES = {
    "python": {
        "condition": {("n < 1 and not self.closed", "False"), ("one", "True")},
        "comparison": {("<", "<=")},
        "boolean": {("and", "or"), ("not", "")},
        "constant": {("0.5", "1.5"), ("1", "2")},
        "statement": {
            ('raise ValueError("n is too small")', "pass"),
            ("self.sold += n", "pass"),
            ('return await cast("int", self.take(n, price=price)) + len(names)', "pass"),
        },
        "part": {
            ("n < 1 and ", ""),
            (" and not self.closed", ""),
            (", price=price", ""),
            (" + len(names)", ""),
        },
    },
    "lua": {
        "condition": {("n < 1 and not closed", "false")},
        "comparison": {("<", "<=")},
        "boolean": {("and", "or"), ("or", "and"), ("not", "")},
        "constant": {("1", "2"), ("''", "'x'"), ("'GET'", "''")},
        "statement": {
            ("return {0, ''}", ""),
            ("redis.call('DECR', KEYS[1])", ""),
            ("left = n - 1", ""),
            ("return {1, 'ok',\n    left}", ""),
            ("return take(KEYS)", ""),
        },
        "part": {("- 1", ""), ("or 0", ""), (", KEYS[1]", "")},
    },
}


def made(language: str) -> list[Mutant]:
    if language == "lua":
        return list(lua.mutants("shop.lua", LUA))
    return python.mutants("shop.py", PYTHON)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("language", CHANGES)
def test_an_operator_makes_its_mutants(language: str, operator: str) -> None:
    found = {(one.old, one.new.strip()) for one in made(language) if one.operator == operator}
    wanted = CHANGES[language][operator]
    assert wanted <= found


@pytest.mark.parametrize("language", CHANGES)
def test_a_mutant_changes_one_place_and_leaves_all_other_lines(language: str) -> None:
    source, compiles = (LUA, lua.compiles) if language == "lua" else (PYTHON, python.compiles)
    mutants = made(language)
    assert len({one.name for one in mutants}) == len(mutants)
    for one in mutants:
        changed = one.apply(source)
        assert changed != source
        assert compiles(changed), one
        assert changed.startswith(source[: one.start])
        assert changed.endswith(source[one.end :])
        assert one.old in source.splitlines()[one.line - 1].decode() + one.old
        assert source.splitlines()[one.line - 1].decode().strip().startswith("--") is False


def test_it_knows_the_function_and_the_lines_of_the_statement() -> None:
    places = {one.old: one.place for one in made("python")}
    assert places["self.sold += n"].function == "Shop.sell"
    assert list(places["<"].lines) == [11]
    assert (places["<"].runs_at_import, places["0.5"].runs_at_import) == (False, True)
    functions = {one.old: one.place.function for one in made("lua")}
    assert (functions["<"], functions["return take(KEYS)"]) == ("take", "")


def test_texts_for_people_types_and_docstrings_stay() -> None:
    changed = {one.old for one in made("python") if one.operator == "constant"}
    assert changed == {"0.5", "1"}


@pytest.mark.parametrize(
    ("script", "module"),
    [("lock.lua", "lock"), ("prelude.lua", "multi"), ("phases.lua", "readwrite")],
)
def test_a_script_is_found_by_the_module_that_loads_it(script: str, module: str) -> None:
    assert f"asynclock/_primitives/{module}.py" in loaders(f"asynclock/_primitives/{script}")
    assert loaders("asynclock/fencing/guard.lua") == ["asynclock/fencing/__init__.py"]


def test_a_seed_decides_on_the_order_and_a_night_on_where_it_begins() -> None:
    found = draw.mutants("asynclock/_rules/quorum.py")
    first, again, other = (list(draw.shuffled(found, seed)) for seed in (1, 1, 2))
    assert first == again != other
    later = list(draw.shuffled(found, 1, skipped=10))
    assert later[0] in first[5:11]
    assert set(later) == set(first) <= set(found)


def test_lines_that_a_change_adds_are_those_of_the_new_file() -> None:
    diff = """\
diff --git a/asynclock/a.py b/asynclock/a.py
--- a/asynclock/a.py
+++ b/asynclock/a.py
@@ -3 +3,2 @@ def f():
-x
+y
+z
@@ -9,2 +10,0 @@
-a
-b
diff --git a/asynclock/b.py b/asynclock/b.py
deleted file mode 100644
--- a/asynclock/b.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""
    assert draw.new_lines(diff) == {"asynclock/a.py": {3, 4}}


def test_a_mutant_is_played_again_by_its_name() -> None:
    one = draw.mutants("asynclock/_rules/quorum.py")[7]
    assert draw.named([one.name]) == [one]
    with pytest.raises(SystemExit, match="no such mutant"):
        draw.named([one.name + "?"])


def test_a_draw_may_miss_as_many_as_chance_explains() -> None:
    assert score.most_survivors(0, 0.9) == 0
    assert score.most_survivors(10, 1.0) == 0
    assert 10 < score.most_survivors(100, 0.9) < 25
    assert 100 < score.most_survivors(1000, 0.9) < 135


def test_what_is_accepted_can_happen() -> None:
    for one in score.acceptances():
        assert any(one.covers(mutant) for mutant in draw.mutants(one.file)), one
        assert one.reason


# ---- which tests are chosen for a mutant, from a record ------------------------------------------
FILE = "asynclock/_rules/quorum.py"
HERE = "tests/mutation/test_mutants.py"
THERE = "tests/rules/test_quorum.py"
SLOW, FAST, ELSEWHERE = "test_a_slow_one", "test_a_fast_one", "test_majority"


def test_a_slow_one() -> None:
    """Here to be recorded, as is the next one."""


def test_a_fast_one() -> None: ...


def record(folder: Path, tests: dict[str, tuple[float, list[int]]]) -> Reach:
    path = folder / "reach.json.gz"
    sets = [[FILE, lines] for _, lines in tests.values()]
    found = [[name, seconds, [at]] for at, (name, (seconds, _)) in enumerate(tests.items())]
    with gzip.open(path, "wt") as out:
        json.dump({"sets": sets, "tests": found}, out)
    return Reach(path)


def mutant(old: str) -> Mutant:
    return next(one for one in draw.mutants(FILE) if one.old == old)


def test_those_that_run_a_line_come_fastest_first_of_its_package_earlier(tmp_path: Path) -> None:
    one = mutant("self.refused += 1")
    reach = record(
        tmp_path,
        {
            f"{HERE}::{SLOW}": (9.0, [one.line]),
            f"{HERE}::{FAST}[a]": (0.3, [one.line]),
            f"{HERE}::{FAST}[b]": (0.2, [one.line]),
            f"{THERE}::{ELSEWHERE}": (0.4, [one.line, one.line + 1]),
            f"{THERE}::{ELSEWHERE}[other]": (0.1, [one.line + 2]),
            f"{THERE}::test_that_has_gone": (0.1, [one.line]),
        },
    )
    cases = [f"{THERE}::{ELSEWHERE}", f"{HERE}::{FAST}[b]", f"{HERE}::{FAST}[a]"]
    assert reach.tests(one) == [*cases, f"{HERE}::{SLOW}"]
    assert chosen(reach, one) == [*cases, f"{HERE}::{SLOW}"]


def test_a_test_that_a_table_makes_is_one(tmp_path: Path) -> None:
    table = "tests/tables/primitives/test_rwlock_replies.py::test_readers_in_memory[a_row]"
    assert table in record(tmp_path, {table: (0.1, [1])}).seconds


def test_what_runs_at_import_is_tested_by_those_who_import_it(tmp_path: Path) -> None:
    """And by those that run its lines anew. A function that it calls is one of the package's."""
    one, inside = mutant('"lost"'), mutant("self.refused += 1")
    tests = {f"{HERE}::{FAST}": (0.1, [one.line]), f"{THERE}::{ELSEWHERE}": (0.2, [])}
    assert record(tmp_path, tests).tests(one) == [f"{THERE}::{ELSEWHERE}", f"{HERE}::{FAST}"]
    tests[AT_IMPORT] = (0.0, [inside.line])
    assert record(tmp_path, tests).tests(inside) == [f"{THERE}::{ELSEWHERE}"], "of its package"


def test_a_text_that_is_used_at_import_is_tested_by_those_who_name_it(tmp_path: Path) -> None:
    text = "connect(...).fair_lock(name)"
    *_, one = (m for m in draw.mutants("asynclock/_primitives/lock.py") if text in m.old)
    assert record(tmp_path, {f"{HERE}::{FAST}": (0.1, [])}).tests(one) == [f"{HERE}::{FAST}"]


def test_without_a_record_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run `nox -s tests"):
        Reach(tmp_path / "none")
