"""What type checkers say of a user's module, in their strict modes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typing.conftest import pyright_command

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT, WRONG = HERE / "user_module.py", HERE / "wrong_module.txt"


def copied(file: Path, folder: Path) -> Path:
    """Outside of the tree, where the project's own settings do not count."""
    copy = folder / f"{file.stem}.py"
    copy.write_text(file.read_text())
    return copy


def mypy(file: Path, folder: Path) -> dict[int, str]:
    copy = copied(file, folder)
    options = ["--strict", "--config-file=", f"--cache-dir={folder}", "--no-error-summary"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(copy)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    lines = [line for line in found.stdout.splitlines() if ": error:" in line]
    elsewhere = [line for line in lines if copy.name not in line]
    assert not elsewhere
    assert not found.stderr
    return {int(re.search(rf"{copy.name}:(\d+):", line)[1]): line for line in lines}  # type: ignore[index]


def pyright(file: Path, folder: Path) -> dict[int, str]:
    include = [copied(file, folder).name]
    settings = {"include": include, "typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [*pyright_command(), "--outputjson", "-p", str(config)]
    command += ["--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, found.stdout
    said = report["generalDiagnostics"]
    return {
        one["range"]["start"]["line"] + 1: one["message"]
        for one in said
        if one["severity"] == "error"
    }


CHECKERS = {"mypy": mypy, "pyright": pyright}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_right_module_is_right(checker: str, tmp_path: Path) -> None:
    assert CHECKERS[checker](RIGHT, tmp_path) == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_each_mistake_is_found(checker: str, tmp_path: Path) -> None:
    lines = WRONG.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    found = CHECKERS[checker](WRONG, tmp_path)
    assert marked - found.keys() == set(), "not found"
    assert found.keys() - marked == set(), found
