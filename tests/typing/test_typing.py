"""What type checkers say of a user's module, in their strict modes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT = HERE / "user_module.py"
WRONG = [HERE / "wrong_module.txt", HERE / "unused_module.txt"]
Found = dict[str, dict[int, str]]
"""For each module: the errors by their lines."""


def pyright_command() -> list[str]:
    """Return what starts pyright; where it can't have Node.js or itself, the test is skipped."""
    command = [sys.executable, "-m", "pyright"]
    tried = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no pyright: {tried.stderr.strip()[-200:]}")
    return command


def copied(folder: Path) -> dict[str, Path]:
    """Outside of the tree, where the project's own settings do not count."""
    copies = {}
    for file in (RIGHT, *WRONG):
        copies[file.stem] = folder / f"{file.stem}.py"
        copies[file.stem].write_text(file.read_text())
    return copies


def mypy(folder: Path) -> Found:
    copies = copied(folder)
    options = ["--strict", "--config-file=", f"--cache-dir={folder}", "--no-error-summary"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, copies.values())],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert not run.stderr
    found: Found = {name: {} for name in copies}
    for line in run.stdout.splitlines():
        if ": error:" in line:
            place = re.search(r"(\w+)\.py:(\d+):", line)
            assert place is not None, line
            found[place[1]][int(place[2])] = line  # KeyError: an error elsewhere
    return found


def pyright(folder: Path) -> Found:
    include = [copy.name for copy in copied(folder).values()]
    settings = {"include": include, "typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [*pyright_command(), "--outputjson", "-p", str(config)]
    command += ["--pythonpath", sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(include), run.stdout
    found: Found = {Path(name).stem: {} for name in include}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"]).stem][one["range"]["start"]["line"] + 1] = one["message"]
    return found


CHECKERS = {"mypy": mypy, "pyright": pyright}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_right_module_is_right_and_each_mistake_found(checker: str, tmp_path: Path) -> None:
    found = CHECKERS[checker](tmp_path)
    assert found[RIGHT.stem] == {}
    for wrong in WRONG:
        lines = enumerate(wrong.read_text().splitlines(), 1)
        marks = ("# wrong", f"# wrong to {checker}")
        marked = {number for number, line in lines if line.endswith(marks)}
        mistakes = found[wrong.stem]
        assert marked - mistakes.keys() == set(), "not found"
        assert mistakes.keys() - marked == set(), mistakes
