"""The published benchmark: recipes, rules and tasks of platoon-textcraft, fetched on first use.

Its metadata asks for a newer Python and for a client library that what we need never imports, so it
cannot be a plain requirement. It is installed with the interpreter's own pip, pinned by SHA-256,
into a folder of its own below the cache; nothing of it is part of this project.
"""

import functools
import importlib
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import Any

from sera_jax.caching import cache_folder

NAME, VERSION = "platoon-textcraft", "0.3.0"
WHEEL_SHA256 = "9f0e8819fc2897ec186f84eea0acb98b468fc84a1badeb2676264a7e055edfa3"
PIP = ("install", "--no-deps", "--ignore-requires-python", "--only-binary", ":all:", "--target")
PIP_SECONDS = 300


class Unavailable(OSError):
    """The package is not there and could not be fetched; the message says what to run."""


def folder() -> pathlib.Path:
    """Where the package is, installed now if need be. Several processes may ask at once."""
    target = cache_folder() / f"{NAME}-{VERSION}"
    if not target.is_dir():
        print(f"TextCraft-Synth: installing {NAME} {VERSION} (4 MB) in {target}", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as scratch:
            _install(pathlib.Path(scratch), target)
    return target


def _install(scratch: pathlib.Path, target: pathlib.Path) -> None:
    """Fills `target` at once by a rename: where it exists, it is whole."""
    pinned = scratch / "requirements.txt"
    pinned.write_text(f"{NAME}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    site, pip = scratch / "site", [sys.executable, "-m", "pip"]
    quiet = ["--quiet", "--no-compile", "--disable-pip-version-check", "--no-input"]
    command = [*pip, *PIP, str(site), *quiet, "--require-hashes", "-r", str(pinned)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(_help(str(error), target)) from None
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR:")]
        raise Unavailable(_help((lines or [ran.stderr.strip() or "pip failed"])[-1], target))
    try:
        os.rename(site, target)
    except OSError:
        if not target.is_dir():  # else another process was faster, with the same files
            raise


def _help(reason: str, target: pathlib.Path) -> str:
    by_hand = shlex.join(["python", "-m", "pip", *PIP, str(target), f"{NAME}=={VERSION}"])
    return (
        f"{NAME} {VERSION} could not be installed: {reason[:200]}\n"
        f"Where there is a package index, run: {by_hand}"
    )


def module(name: str) -> ModuleType:
    """A module of the package, such as "harbor.game". Never "env": it takes 10 s and 150 MB."""
    path = str(folder())
    sys.path.insert(0, path)
    try:
        return importlib.import_module(f"platoon_textcraft.{name}")
    finally:
        sys.path.remove(path)


@functools.cache
def published_recipes() -> dict[str, Any]:
    """The one recipe world, in the form that `harbor.game.RecipeBook` reads."""
    loader = module("synth_recipe_loader").SynthRecipeLoader
    state = random.getstate()
    try:
        world = loader()  # seeds the global generator
    finally:
        random.setstate(state)
    recipes = {
        item: [{"result_count": r.result_count, "ingredients": list(r.ingredients.items())}]
        for item, (r,) in world.recipes.items()
    }
    return {
        "format": "textcraft-recipes/1",
        "name": "textcraft-synth",
        "recipes": recipes,
        "base_items": sorted(world.base_items),
        "depths": dict(world.item_depths),
        "tags": {},
    }


def published_lines(split: str) -> list[dict[str, Any]]:
    """The records of "train" or "val" as they are published."""
    path = folder() / "platoon_textcraft" / "data" / f"textcraft_synth_{split}.jsonl"
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
