"""The README as the package index can show it.

The index has neither the repository's files nor a checkout. If `[project.urls]` names a repository
as `Source`, relative links and pictures lead there, to the tag of the version. Otherwise a link is
plain text, and a picture gives way to the text that describes it. A command that installs the
checkout installs the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^!\[([^]]*)\]\((?!https?:)([^)]*)\)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:|mailto:|#)([^)]*)\)")
CHECKOUT = re.compile(r'(?<=pip install )"\.\[(\w+)\]"')


def for_index(text: str, name: str, version: str, source: str | None) -> str:
    """Return the README for the index; `source`: the address of the repository, if it has one."""
    if source is None:
        text = IMAGE.sub(r"> \1", text)
        text = LINK.sub(r"\1", text)
    else:
        text = IMAGE.sub(rf"![\1]({source}/raw/v{version}/\2)", text)
        text = LINK.sub(rf"[\1]({source}/blob/v{version}/\2)", text)
    return CHECKOUT.sub(rf'"{name}[\1]"', text)


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling while it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `readme`."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        text = for_index(text, metadata["name"], metadata["version"], source)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
