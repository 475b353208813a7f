"""Shared set-up of the tests: a persistent compilation cache, and the recordings when present."""

import os
import pathlib

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/sera_jax/xla-tests")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def pytest_addoption(parser):
    parser.addoption(
        "--server",
        choices=("embedded", "sglang"),
        default="embedded",
        help="policy server of the contract tests; sglang is installed first if it is missing",
    )


@pytest.fixture(scope="session")
def recordings() -> pathlib.Path:
    """Folder of recorded play and golden checkpoints, laid beside the checkout where it exists."""
    folder = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}; runs where they are laid beside the checkout")
    return folder


@pytest.fixture(scope="session")
def textcraft_data() -> pathlib.Path:
    """The published package, or a skipped test where it can neither be found nor fetched."""
    from sera_jax.worlds.textcraft_synth import package

    try:
        return package.folder()
    except package.Unavailable as error:
        pytest.skip(f"runs where platoon-textcraft is, or can be fetched: {error}")
