import pytest

from sera_jax.worlds.textcraft_synth import package


@pytest.fixture(scope="session")
def textcraft_data():
    """The published package, or a skipped test where it can neither be found nor fetched."""
    try:
        return package.folder()
    except package.Unavailable as error:
        pytest.skip(str(error))
