"""What the package index shows: the README, and links to the repository.

The links come from the remote `origin` of the checkout that is built, if that is the address of a
forge. An sdist has no checkout: hatchling takes its links from PKG-INFO.

The index has neither the repository's files nor a checkout. Relative links and pictures of the
README lead to the repository, to the tag of the version. Without a repository a link is plain text,
and a picture gives way to the text that describes it. A command that installs the checkout installs
the package.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^!\[([^]]*)\]\((?!https?:)([^)]*)\)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:|mailto:|#)([^)]*)\)")
CHECKOUT = re.compile(r'(?<=pip install )"\.\[(\w+)\]"')

SCP = re.compile(r"(?:[^@/:]+@)?([^@/:]+):(?!/)([^:]+)")
"""The short form of an ssh address, `git@host:owner/name.git`."""
HOST = re.compile(r"(?:[a-z0-9-]+\.)+(?:[a-z]{2,}|xn--[a-z0-9-]+)")
"""A host that others can look up: no IP address, no `localhost`, no alias in `~/.ssh/config`."""
PATH = re.compile(r"[\w.~/+%-]+", re.ASCII)
NOT_PUBLIC = {"internal", "lan", "local", "localdomain", "localhost"}
WITH_ISSUES = {"codeberg.org", "github.com", "gitlab.com"}
LAYOUTS = {
    "bitbucket.org": ("src/v{version}/{path}", "raw/v{version}/{path}"),
    "codeberg.org": ("src/tag/v{version}/{path}", "raw/tag/v{version}/{path}"),
}
"""Where a forge shows a file of a tag, and where it sends one."""
USUAL = ("blob/v{version}/{path}", "raw/v{version}/{path}")


def origin(root: Path) -> str | None:
    """Return the address of `origin`, if `root` itself is a checkout.

    A folder inside of somebody else's checkout is none, and no more is an unpacked sdist.
    """
    if not (root / ".git").exists() or (root / "PKG-INFO").exists():
        return None
    # Where git is started by a hook, GIT_DIR names another repository: the option overrides it.
    ask = ["git", f"--git-dir={root / '.git'}", "remote", "get-url", "origin"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or no such remote


def web_address(remote: str) -> str | None:
    """Return the https address of a remote without credentials; None if others can't reach it."""
    if short := SCP.fullmatch(remote):
        remote = f"ssh://{short[1]}/{short[2]}"
    try:
        parts = urlsplit(remote)
        port = parts.port
    except ValueError:
        return None
    host, path = parts.hostname or "", parts.path.strip("/").removesuffix(".git")
    if parts.scheme == "ssh":
        # The port of ssh is not that of https, and some forges have a host of its own for port 443.
        host, port = re.sub(r"^(?:alt)?ssh\.", "", host), None
    elif parts.scheme != "https":
        return None
    public = HOST.fullmatch(host) and host.rpartition(".")[2] not in NOT_PUBLIC
    if not public or not PATH.fullmatch(path):
        return None
    return f"https://{host}{f':{port}' if port else ''}/{path}"


def file_address(source: str, version: str, path: str, *, raw: bool = False) -> str:
    """Return the address of a file at the tag of `version`: its page, or with `raw` the file."""
    page, file = LAYOUTS.get(urlsplit(source).netloc, USUAL)
    return f"{source}/{(file if raw else page).format(version=version, path=path)}"


def project_urls(remote: str | None, version: str) -> dict[str, str]:
    """Return the links for the index, as far as the address of the remote tells them."""
    source = web_address(remote) if remote else None
    if source is None:
        return {}
    urls = {
        "Source": source,
        "Documentation": file_address(source, version, "docs/index.md"),
        "Changelog": file_address(source, version, "CHANGELOG.md"),
    }
    if urlsplit(source).netloc in WITH_ISSUES:
        urls["Issues"] = f"{source}/issues"
    return urls


def for_index(text: str, name: str, version: str, source: str | None) -> str:
    """Return the README for the index; `source`: the address of the repository, if it has one."""
    if source is None:
        text = IMAGE.sub(r"> \1", text)
        text = LINK.sub(r"\1", text)
    else:
        page, file = (file_address(source, version, r"\2", raw=raw) for raw in (False, True))
        text = IMAGE.sub(rf"![\1]({file})", text)
        text = LINK.sub(rf"[\1]({page})", text)
    return CHECKOUT.sub(rf'"{name}[\1]"', text)


class IndexHook(MetadataHookInterface):
    """Called by hatchling while it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `urls` and `readme`."""
        root = Path(self.root)
        urls = project_urls(origin(root), metadata["version"])
        if urls:
            metadata["urls"] = urls
        text = for_index(
            (root / "README.md").read_text("utf-8"),
            metadata["name"],
            metadata["version"],
            urls.get("Source"),
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
