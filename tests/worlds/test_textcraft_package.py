"""Fetching the benchmark: pinned, whole or not at all, and said in one line."""

import hashlib
import random
import sys
import threading
import zipfile

import pytest

from sera_jax.worlds.textcraft_synth import package

WHEEL = "platoon_textcraft-0.3.0-py3-none-any.whl"
METADATA = """Metadata-Version: 2.1
Name: platoon-textcraft
Version: 0.3.0
Requires-Python: >=99
Requires-Dist: a-package-that-does-not-exist
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder in place of the package index, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def publish(index, monkeypatch):
    """A wheel of the same name, which our pin is made to fit."""
    info = "platoon_textcraft-0.3.0.dist-info"
    with zipfile.ZipFile(index / WHEEL, "w") as wheel:
        wheel.writestr("platoon_textcraft/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", METADATA)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256((index / WHEEL).read_bytes()).hexdigest()
    monkeypatch.setattr(package, "WHEEL_SHA256", digest)


def left_behind(tmp_path):
    return [path.name for path in (tmp_path / "cache" / "sera_jax").iterdir()]


def test_it_is_installed_once_by_whoever_asks_first(index, tmp_path, monkeypatch, capsys):
    publish(index, monkeypatch)
    threads = [threading.Thread(target=package.folder) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (package.folder() / "platoon_textcraft" / "__init__.py").exists()
    assert left_behind(tmp_path) == ["platoon-textcraft-0.3.0"]
    lines = capsys.readouterr().out.splitlines()
    assert 1 <= len(lines) <= 3 and all("installing platoon-textcraft 0.3.0" in x for x in lines)


def test_other_bytes_under_the_same_name_are_refused(index, tmp_path, monkeypatch):
    publish(index, monkeypatch)
    monkeypatch.setattr(package, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(package.Unavailable, match="DO NOT MATCH THE HASHES"):
        package.folder()
    assert left_behind(tmp_path) == []


def test_without_an_index_the_command_to_run_is_named(index, tmp_path):
    with pytest.raises(package.Unavailable) as raised:
        package.folder()
    reason, command = str(raised.value).split("\n")
    assert "could not be installed" in reason and "No matching distribution" in reason
    target = tmp_path / "cache" / "sera_jax" / "platoon-textcraft-0.3.0"
    assert command.endswith(f"--target {target} platoon-textcraft==0.3.0")
    assert "--no-deps --ignore-requires-python" in command
    assert left_behind(tmp_path) == []


def test_recipes_leave_the_global_generator_and_the_search_path_alone(textcraft_data):
    package.published_recipes.cache_clear()
    random.seed(7)
    state, path = random.getstate(), list(sys.path)
    data = package.published_recipes()
    assert random.getstate() == state and sys.path == path
    assert (len(data["depths"]), len(data["recipes"]), len(data["base_items"])) == (1452, 1402, 50)
    assert "platoon_textcraft.env" not in sys.modules
