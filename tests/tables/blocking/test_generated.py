"""The classes for threads are those that the asynchronous classes say."""

import ast

from tests.tables.blocking.generate import FILE, generated


def test_the_generated_file_is_current() -> None:
    """After a change of an asynchronous signature or docstring: `nox -s generate`."""
    written, wanted = map(ast.parse, (FILE.read_text("utf-8"), generated()))
    assert ast.unparse(written) == ast.unparse(wanted)
