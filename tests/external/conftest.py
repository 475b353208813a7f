import pytest
from external_fakes import KEY

from sera_jax.external import chat


@pytest.fixture(autouse=True)
def key_and_no_waiting(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setattr(chat, "BACKOFF", 0.001)
