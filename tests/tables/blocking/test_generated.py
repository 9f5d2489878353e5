"""The classes for threads are those that the asynchronous classes say."""

import ast

import pytest

from tests.tables.blocking.generate import FILE, for_threads, generated


def test_the_generated_file_is_current() -> None:
    """After a change of an asynchronous signature or docstring: `nox -s generate`."""
    written, wanted = map(ast.parse, (FILE.read_text("utf-8"), generated()))
    assert ast.unparse(written) == ast.unparse(wanted)


@pytest.mark.parametrize(
    ("said", "for_us"),
    [
        ("With `inherit`, tasks that it starts have their own holds. The rest", "The rest"),
        ("Ends. With `interrupt` (the default) it is a LeaseLostError. So", "Ends. So"),
        ("    interrupt: what\n    name: who", "    name: who"),
        ("works again in the next event loop.", "works again."),
        ("as asyncio.Event (await it), asyncio.Redis", "as threading.Event (it), asyncio.Redis"),
        ("a cancelled task: Cancelling it", "a interrupted thread: Interrupting it"),
    ],
)
def test_the_words_for_threads(said: str, for_us: str) -> None:
    assert for_threads(said) == for_us
