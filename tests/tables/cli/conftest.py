"""For tables of the command line: what its tests have."""

from tests.cli.conftest import as_from_a_shell, bare, here, logger, program

__all__ = ["as_from_a_shell", "bare", "here", "logger", "program"]
