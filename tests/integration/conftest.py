import pytest
from jobs import finish, start


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """(folder, output) of an unbroken run, with which others are compared."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, finish(start(folder))
