"""How the type checkers are called."""

import subprocess
import sys

import pytest


def pyright_command() -> list[str]:
    """Return what starts pyright; where it can't have Node.js or itself, the test is skipped."""
    command = [sys.executable, "-m", "pyright"]
    tried = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no pyright: {tried.stderr.strip()[-200:]}")
    return command
