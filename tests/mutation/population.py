"""All mutants of the library."""

from functools import cache

from tests.mutation import lua, python
from tests.mutation.mutant import ROOT, Mutant


def files() -> list[str]:
    """Return the files of the library that have mutants."""
    found = (ROOT / "asynclock").rglob("*")
    return sorted(str(p.relative_to(ROOT)) for p in found if p.suffix in (".py", ".lua"))


@cache
def mutants(file: str) -> tuple[Mutant, ...]:
    """Return the mutants of a file."""
    make = python.mutants if file.endswith(".py") else lua.mutants
    return tuple(make(file, (ROOT / file).read_bytes()))


def compiles(mutant: Mutant) -> bool:
    """Return whether its language can read a mutant: nobody would commit another."""
    reads = python.compiles if mutant.file.endswith(".py") else lua.compiles
    return reads(mutant.apply((ROOT / mutant.file).read_bytes()))
