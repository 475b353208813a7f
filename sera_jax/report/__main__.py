"""Writes the report of one or several runs: python -m sera_jax.report runs/NAME [runs/OTHER ...]"""

import argparse
import pathlib
import sys

from sera_jax.report import figures, page, runs


def write(folders: list[str]) -> tuple[pathlib.Path, list[pathlib.Path]]:
    """The page and the PNGs, in the first run's folder; several runs do not replace its own."""
    loaded = runs.load(folders)
    name = "report" if len(loaded) == 1 else "comparison"
    path = loaded[0].folder / f"{name}.html"
    path.write_text(page.build(loaded), encoding="utf-8")
    return path, figures.write(loaded, loaded[0].folder / f"{name}_figures")


def main() -> None:
    parser = argparse.ArgumentParser("python -m sera_jax.report", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="runs/NAME", help="a run's folder")
    try:
        path, pictures = write(parser.parse_args().folders)
    except runs.ReportError as error:
        sys.exit(f"ReportError: {error}")
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB, open it in a browser)")
    if pictures:
        print(f"figures: {len(pictures)} PNGs in {pictures[0].parent}")


if __name__ == "__main__":
    main()
