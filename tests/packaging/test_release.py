"""What a release makes of the README and of the fragments."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from nox import registry
from readme_renderer import markdown

from benchmarks import words as telling
from benchmarks.results import HERE, Case, Results

ROOT = Path(__file__).parents[2]
LEADING = Case("cycle", 5, 100)
"""A result without it is one of waiting, which has a picture of its own."""
WAITING = Case("workers2", 1, 16)
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


# ---- the links on the package index --------------------------------------------------------------
GITHUB = "https://github.com/owner/name"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What hatchling needs of this project, as a repository without a remote."""
    for variable in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(variable, os.devnull)  # settings may replace addresses
    folder = tmp_path / "checkout"
    (folder / "asynclock").mkdir(parents=True)
    (folder / "asynclock" / "__init__.py").touch()
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    git(folder, "init", "-q")
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def filled_in(folder: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "asynclock", "version": "1.2.3"}
    load("hatch_build").IndexHook(str(folder), {}).update(metadata)
    return metadata


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        ("https://github.com/owner/name", GITHUB),
        ("https://github.com/owner/name.git", GITHUB),
        ("https://user:secret@github.com/owner/name.git", GITHUB),
        ("git@github.com:owner/name.git", GITHUB),
        ("github.com:owner/name", GITHUB),
        ("ssh://git@github.com/owner/name.git", GITHUB),
        ("ssh://git@ssh.github.com:443/owner/name.git", GITHUB),
        ("ssh://git@git.example:2222/team/part/name.git", "https://git.example/team/part/name"),
        ("https://git.example:8443/owner/name/", "https://git.example:8443/owner/name"),
        ("http://github.com/owner/name", None),
        ("git://github.com/owner/name", None),
        ("/srv/git/name.git", None),
        ("../name", None),
        ("file:///srv/git/name.git", None),
        ("https://127.0.0.1:3000/owner/name", None),
        ("https://[::1]/owner/name", None),
        ("https://localhost/owner/name", None),
        ("git@git.localhost:owner/name", None),
        ("git@work:owner/name", None),
        ("git@github.com-work:owner/name", None),
        ("https://github.com", None),
        ("https://github.com:port/owner/name", None),
    ],
)
def test_the_source_is_origins_public_address(
    checkout: Path, remote: str, source: str | None
) -> None:
    git(checkout, "remote", "add", "origin", remote)
    assert filled_in(checkout).get("urls", {}).get("Source") == source


def test_links_lead_to_the_tag_of_the_version_if_there_is_a_repository(checkout: Path) -> None:
    without = filled_in(checkout)
    assert "urls" not in without
    assert "docs/quickstart.md" not in without["readme"]["text"]
    git(checkout, "remote", "add", "origin", f"{SOURCE}.git")
    found = filled_in(checkout)
    assert f"]({FILES}/docs/quickstart.md)" in found["readme"]["text"]
    assert f"]({PICTURES}/docs/_static/demo.svg)" in found["readme"]["text"]
    for url in found["urls"].values():
        assert url == SOURCE or (ROOT / url.removeprefix(f"{FILES}/")).is_file(), url


@pytest.mark.parametrize(
    ("source", "readme", "issues"),
    [
        (GITHUB, "/blob/v1.2.3/README.md", "/issues"),
        ("https://codeberg.org/owner/name", "/src/tag/v1.2.3/README.md", "/issues"),
        ("https://bitbucket.org/owner/name", "/src/v1.2.3/README.md", None),
        (SOURCE, "/blob/v1.2.3/README.md", None),
    ],
)
def test_each_forge_has_its_own_paths(source: str, readme: str, issues: str | None) -> None:
    hook = load("hatch_build")
    assert hook.file_address(source, "1.2.3", "README.md") == source + readme
    found = hook.project_urls(source, "1.2.3").get("Issues")
    assert found == (issues and source + issues)


def test_only_the_checkout_itself_is_asked(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "remote", "add", "origin", GITHUB)
    hook = load("hatch_build")
    inside = checkout / "vendored"
    inside.mkdir()
    assert hook.origin(inside) is None
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))  # as in a hook of the other repository
    assert hook.origin(checkout) == GITHUB
    (checkout / "PKG-INFO").touch()  # somebody's repository of an sdist
    assert hook.origin(checkout) is None


def test_without_git_there_are_no_links(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(checkout, "remote", "add", "origin", GITHUB)
    monkeypatch.setenv("PATH", str(checkout))
    assert "urls" not in filled_in(checkout)


@pytest.mark.parametrize("source", [None, GITHUB])
def test_an_sdist_hands_its_links_on_to_the_wheel(
    checkout: Path, source: str | None, noxfile: ModuleType
) -> None:
    """The sdist has no checkout: hatchling reads its PKG-INFO."""
    if source:
        git(checkout, "remote", "add", "origin", f"{source}.git")

    def build(folder: Path, target: str) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "made"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        (made,) = (folder / "made").iterdir()
        return made

    with tarfile.open(build(checkout, "sdist")) as archive:
        # Python before 3.11.4, such as Debian 12's, has no `filter=`; 3.12 warns if none is chosen.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(checkout.parent)
    (unpacked,) = checkout.parent.glob("asynclock-*")
    links = noxfile.links_in(build(unpacked, "wheel"))
    version = unpacked.name.removeprefix("asynclock-")
    wanted = load("hatch_build").project_urls(source, version)
    assert bool(wanted) == bool(source)
    assert links == [f"{label}, {url}" for label, url in wanted.items()]


def test_the_readme_and_its_picture_tell_the_newest_result() -> None:
    found = {file: Results.from_json(file.read_text("utf-8")) for file in HERE.glob("2*.json")}
    newest = max(file for file, result in found.items() if LEADING in result.cases())
    results = found[newest]
    assert telling.readme(results, newest.stem) in README
    assert newest.with_suffix(".md").exists()
    picture = (newest.parent / "headline.svg").read_text("utf-8")
    assert results.machine["date"].split()[0] in picture
    assert telling.machine(results) in picture
    ours = results.median(LEADING, "asynclock", "cycles_per_s")
    assert f"{ours:,.0f}" in picture


def test_the_picture_of_waiting_tells_the_newest_result() -> None:
    found = {file: Results.from_json(file.read_text("utf-8")) for file in HERE.glob("2*.json")}
    newest = max(file for file, result in found.items() if WAITING in result.cases())
    results = found[newest]
    assert newest.with_suffix(".md").exists()
    picture = (newest.parent / "waiting.svg").read_text("utf-8")
    assert results.machine["date"].split()[0] in picture
    assert telling.machine(results) in picture


# ---- the changelog -------------------------------------------------------------------------------
SECTION = "## 0.2.0\n\n"


@pytest.mark.parametrize("by_hand", ["", f"{SECTION}Words by hand.\n\n"])
def test_fragments_become_a_section_and_are_deleted(
    tmp_path: Path, noxfile: ModuleType, by_hand: str
) -> None:
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / "README.md").write_text("stays")
    (folder / "b.fixed.md").write_text("A fault\nis fixed.\n")
    (folder / "a.fixed.md").write_text("Another.\n")
    (folder / "c.added.md").write_text("News.\n")
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\nWords.\n\n{by_hand}## 0.1.0\n\nOld.\n")
    noxfile.collect_fragments("0.2.0")
    assert changelog.read_text() == (
        f"# Changelog\n\nWords.\n\n{by_hand or SECTION}### Added\n\n- News.\n\n"
        "### Fixed\n\n- Another.\n- A fault is fixed.\n\n## 0.1.0\n\nOld.\n"
    )
    assert [file.name for file in folder.iterdir()] == ["README.md"]


def test_a_section_by_hand_needs_no_fragments(tmp_path: Path, noxfile: ModuleType) -> None:
    (tmp_path / "CHANGELOG.md").write_text(text := "# Changelog\n\n## 0.2.0\n\nBy hand.\n")
    noxfile.collect_fragments("0.2.0")
    assert (tmp_path / "CHANGELOG.md").read_text() == text


def test_the_changelog_begins_with_the_version(noxfile: ModuleType) -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].partition("\n")[0]
    assert newest == noxfile.PROJECT["project"]["version"]


def test_each_fragment_has_a_kind_that_the_changelog_knows(noxfile: ModuleType) -> None:
    """Another kind would neither be collected nor deleted."""
    for file in (ROOT / "changelog.d").iterdir():
        kind = file.name.removesuffix(".md").rpartition(".")[2]
        assert file.name == "README.md" or kind in noxfile.FRAGMENTS, file.name
        assert file.name == "README.md" or file.read_text().strip(), f"{file.name} is empty"


def test_sessions_name_tests_that_exist(noxfile: ModuleType) -> None:
    """pytest runs nothing at all if one of its paths does not exist."""
    named = [*noxfile.ON_EACH_PYTHON, *noxfile.ON_EACH_SERVER, *noxfile.UNMEASURED]
    named += [*noxfile.QUICK, *noxfile.LAYERS]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_release_wants_a_repository_without_changes(tmp_path: Path, noxfile: ModuleType) -> None:
    assert "`origin`" in noxfile.not_releasable({})
    links = {"Source": SOURCE}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert noxfile.not_releasable(links) is None
    (tmp_path / "loose").touch()
    assert "commit or stash" in noxfile.not_releasable(links)


def test_the_workflow_runs_each_session_that_nox_runs_by_itself(noxfile: ModuleType) -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["session"]
    matrix = job["strategy"]["matrix"]
    (pythons,) = (one["with"] for one in job["steps"] if "setup-python" in one.get("uses", ""))
    assert set(pythons["python-version"].split()) == noxfile.PYTHONS.keys()
    by_itself = [name for name, session in registry.get().items() if session.default is not False]
    assert sorted(" ".join(matrix["session"]).split()) == sorted(by_itself)
    assert {"nightly"} <= registry.get().keys()


# ---- what is installed ---------------------------------------------------------------------------
def test_the_docs_list_what_is_installed_with_its_range_and_licence(noxfile: ModuleType) -> None:
    project = noxfile.PROJECT["project"]
    optional = project["optional-dependencies"]
    declared = {("always", one) for one in project["dependencies"]}
    for extra, ones in optional.items():
        for one in ones:
            inner = re.fullmatch(r"asynclock\[(.*)\]", one)
            names = inner[1].split(",") if inner else []
            found = [dependency for name in names for dependency in optional[name]]
            declared |= {(extra, dependency) for dependency in found or [one]}
    text = (ROOT / "docs" / "versions.md").read_text("utf-8")
    rows = re.findall(r"^\| ([a-z-]+) \| (>=\S+) \| (.*?) \| (.*?) \| ", text, re.MULTILINE)
    listed = {
        (extra.partition(" ")[0], name, least)
        for name, least, extras, _ in rows
        for extra in extras.split(", ")
    }
    split = {
        (extra, re.split(r"\W(?<!-)", one)[0], re.findall(r">=[\d.]+", one)[0])
        for extra, one in declared
    }
    assert listed == split
    for name, _, _, licence in rows:
        try:
            stated = metadata.metadata(name).get("License-Expression")
        except metadata.PackageNotFoundError:
            continue  # an extra that this environment lacks
        assert stated in (None, licence), name


# ---- the packages --------------------------------------------------------------------------------
def test_the_packages_hold_what_they_should_and_are_the_same_each_time(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=50)
    made, again = (sorted((tmp_path / folder).iterdir()) for folder in ("one", "two"))
    assert [file.read_bytes() for file in made] == [file.read_bytes() for file in again]
    wheel, sdist = sorted(made, key=lambda file: file.suffix != ".whl")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    kept = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tracked = {name for name in kept.split("\0") if (ROOT / name).is_file()}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("asynclock/")}
    assert wheel.stat().st_size < 560_000
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    left_out = (".ci/", ".github/", ".gitignore", ".pre-commit")
    assert found - {"PKG-INFO"} == {name for name in tracked if not name.startswith(left_out)} | (
        found & {".gitignore"}  # hatchling adds it to find out what to leave out
    )
