"""The README as the package index can show it.

The index has neither the repository's files nor a checkout. So a relative link leads to the
repository if `[project.urls]` names one as `Source`, and is plain text otherwise; a picture gives
way to the text that describes it; and a command that installs the checkout installs the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^!\[([^]]*)\]\((?!https?:)[^)]*\)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:|mailto:|#)([^)]*)\)")
CHECKOUT = re.compile(r'(?<=pip install )"\.\[(\w+)\]"')


def for_index(text: str, name: str, files: str | None) -> str:
    """Return the README for the index; `files`: the address below which its links lead."""
    text = IMAGE.sub(r"> \1", text)
    text = LINK.sub(r"\1" if files is None else rf"[\1]({files}/\2)", text)
    return CHECKOUT.sub(rf'"{name}[\1]"', text)


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling while it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `readme`."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        files = source and f"{source}/blob/v{metadata['version']}"
        text = for_index(text, metadata["name"], files)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
