"""The image whose servers run in containers, and the containers of the engine."""

from typing import Any

import docker
import pytest

from asynclock.testing import ContainerImage, container_image, why_no_containers


@pytest.fixture(scope="session")
def image() -> ContainerImage:
    if reason := why_no_containers():
        pytest.skip(reason)
    return container_image()


def containers(**filters: str) -> list[Any]:
    """Return the engine's containers, running or not, that fit."""
    found: list[Any] = docker.from_env().containers.list(
        all=True, ignore_removed=True, filters=filters
    )
    return found
