"""Sphinx settings; built with warnings as errors by `nox -s docs`."""

import asynclock

project = "asynclock"
author = "The asynclock authors"
copyright = "The asynclock authors"
version = release = asynclock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "asynclock"
# Nothing is fetched from elsewhere: the built site reads as well from a folder.
html_static_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"
