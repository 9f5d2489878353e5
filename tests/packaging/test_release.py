"""What a release makes of the README and of the fragments."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from readme_renderer import markdown

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SOURCE = "https://git.example/asynclock"
FILES = f"{SOURCE}/blob/v1.2.3"
PICTURES = f"{SOURCE}/raw/v1.2.3"
OWN_PICTURES = re.findall(r"^!\[([^]]*)\]\((?!https?:)([^)]*)\)$", README, re.MULTILINE)


@functools.cache  # nox wants each session to be registered once
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", ROOT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def noxfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(ROOT)
    module = load("noxfile")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


# ---- the README on the package index -------------------------------------------------------------


def text_for_index(source: str | None) -> str:
    text = load("hatch_build").for_index(README, "asynclock", "1.2.3", source)
    assert isinstance(text, str)
    return text


def shown(source: str | None) -> str:
    html = markdown.render(text_for_index(source))
    assert html is not None
    return html


@pytest.mark.parametrize("source", [None, SOURCE])
def test_the_index_shows_no_broken_link_or_picture(source: str | None) -> None:
    html = shown(source)
    images = re.findall(r'<img[^>]* src="([^"]*)"', html)
    assert images
    ours = [image for image in images if not image.startswith("https://img.shields.io/")]
    assert len(ours) == (len(OWN_PICTURES) if source else 0)
    for image in ours:
        assert image.startswith(f"{PICTURES}/")
        assert (ROOT / image.removeprefix(f"{PICTURES}/")).is_file(), image
    targets = [t for t in re.findall(r'<a href="([^"]*)"', html) if not t.startswith("#")]
    assert bool(targets) == bool(source)
    for target in targets:
        assert target.startswith(f"{FILES}/")
        assert (ROOT / target.removeprefix(f"{FILES}/")).exists(), target
    assert "](" not in html


def test_without_a_repository_pictures_give_way_to_their_words() -> None:
    html = shown(None)
    assert OWN_PICTURES
    for words, _ in OWN_PICTURES:
        assert f"<p>{words}</p>" in html


def test_the_index_installs_the_package_not_a_checkout() -> None:
    assert 'pip install ".[demo]"' in README
    text = text_for_index(None)
    assert 'pip install "asynclock[demo]"' in text
    assert ".[" not in text


def test_the_hook_links_to_the_tag_of_the_version_if_there_is_a_repository() -> None:
    hook = load("hatch_build").ReadmeHook(str(ROOT), {})
    with_source: dict[str, Any] = {"name": "asynclock", "version": "1.2.3"}
    with_source["urls"] = {"Source": SOURCE}
    hook.update(with_source)
    assert f"]({FILES}/docs/quickstart.md)" in with_source["readme"]["text"]
    assert f"]({PICTURES}/docs/_static/demo.svg)" in with_source["readme"]["text"]
    without: dict[str, Any] = {"name": "asynclock", "version": "1.2.3"}
    hook.update(without)
    assert "docs/quickstart.md" not in without["readme"]["text"]


def test_the_figures_of_the_readme_stand_in_the_results_that_it_names() -> None:
    (words,) = re.findall(r"!\[([^]]*)\]\(benchmarks/results/headline.svg\)", README)
    (results,) = re.findall(r"\((benchmarks/results/[\w-]+\.md)\)", README)
    lines = (ROOT / results).read_text("utf-8").split("## cycle, N=5, 100, asyncio")[1].splitlines()
    for name, figure in re.findall(r"([a-z-]+)(?: at)? ([\d,]{3,}\d)(?= a second|,|\.)", words):
        assert any(line.startswith(f"| {name}") and f"| {figure} |" in line for line in lines), name


# ---- the changelog -------------------------------------------------------------------------------


def test_fragments_become_a_section_and_are_deleted(tmp_path: Path, noxfile: ModuleType) -> None:
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / "README.md").write_text("stays")
    (folder / "b.fixed.md").write_text("A fault\nis fixed.\n")
    (folder / "a.fixed.md").write_text("Another.\n")
    (folder / "c.added.md").write_text("News.\n")
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(
        "# Changelog\n\nWords.\n\n## 0.2.0 (unreleased)\n\nSoon.\n\n## 0.1.0\n\nOld.\n"
    )
    noxfile.collect_fragments("0.2.0")
    assert changelog.read_text() == (
        "# Changelog\n\nWords.\n\n## 0.2.0\n\n### Added\n\n- News.\n\n### Fixed\n\n- Another.\n"
        "- A fault is fixed.\n\n## 0.1.0\n\nOld.\n"
    )
    assert [file.name for file in folder.iterdir()] == ["README.md"]


def test_each_fragment_has_a_kind_that_the_changelog_knows(noxfile: ModuleType) -> None:
    """Another kind would neither be collected nor deleted."""
    for file in (ROOT / "changelog.d").iterdir():
        kind = file.name.removesuffix(".md").rpartition(".")[2]
        assert file.name == "README.md" or kind in noxfile.FRAGMENTS, file.name
        assert file.name == "README.md" or file.read_text().strip(), f"{file.name} is empty"


def test_a_release_wants_a_repository_and_no_loose_changes(
    tmp_path: Path, noxfile: ModuleType
) -> None:
    project: dict[str, Any] = {"project": {}}
    assert "Source" in noxfile.not_releasable(project)
    project["project"]["urls"] = {"Source": "https://git.example/asynclock"}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert noxfile.not_releasable(project) is None
    (tmp_path / "loose").touch()
    assert "commit or stash" in noxfile.not_releasable(project)
