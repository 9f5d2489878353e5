"""Where there are no containers, it says why; what they do is under tests/containers."""

from __future__ import annotations

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import container_image, why_no_containers


def test_without_a_docker_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "docker command" in str(why_no_containers())
    with pytest.raises(ConfigurationError, match="docker command"):
        container_image()


def test_without_an_engine(monkeypatch, tmp_path):
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect' >&2; exit 1\n")
    docker.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert why_no_containers() == "no container engine answers: Cannot connect"
