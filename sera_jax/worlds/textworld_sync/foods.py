"""Food data of CookingWorld, read from the installed `textworld-express` package's own file."""

import dataclasses
import functools
import importlib.util
import json
import pathlib

PACKAGE, FILE = "textworld_express", "cooking_world.json"


@dataclasses.dataclass(frozen=True)
class Foods:
    """`preparations`: fold -> food -> its possible preparations; `sources`: food -> places."""

    preparations: dict[str, dict[str, tuple[tuple[str, ...], ...]]]
    sources: dict[str, tuple[str, ...]]


@functools.cache
def load() -> Foods:
    """The data, found without importing the package, which would want a Java machine."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    path = pathlib.Path(folders[0], FILE) if folders else None
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"the food data {PACKAGE}/{FILE} is not installed; "
            "run: pip install textworld-express==1.1.0"
        )
    data = json.loads(path.read_text(encoding="utf-8"))
    preparations = {
        fold: {food: tuple(map(tuple, options)) for food, options in foods.items()}
        for fold, foods in data["FOOD_PREPARATIONS_SPLITS"].items()
    }
    return Foods(preparations, _sources(data["FOODS_COMPACT"]))


def _sources(records: dict[str, dict]) -> dict[str, tuple[str, ...]]:
    """Places of every food: its own record, else the group record that lists its name."""
    places = {}
    for record in records.values():
        for name in record.get("names", ()):
            places.setdefault(name, tuple(record["locations"]))
    return places | {food: tuple(record["locations"]) for food, record in records.items()}
