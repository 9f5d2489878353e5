"""Servers that are not open to everybody."""

import pytest

from asynclock.testing import Certificates, make_certificates
from tests.conftest import Connect


@pytest.fixture
def connect(connecting: Connect) -> Connect:
    return connecting


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))
