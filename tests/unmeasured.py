"""The environment of programs whose coverage is not measured, because that would change them."""

import os
from collections.abc import Mapping


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `base` (default: ours), for a program that is not to be measured."""
    return {key: value for key, value in base.items() if not key.startswith("COVERAGE_")}
