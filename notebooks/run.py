"""Executes notebooks of this folder and keeps their outputs: python notebooks/run.py [FILE ...]

Stands in for a Jupyter kernel where none is installed: cells run in order in one fresh namespace,
prints and open figures become outputs. The tests execute the notebooks by the same function.
"""

import base64
import contextlib
import io
import json
import pathlib
import sys
import warnings
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = pathlib.Path(__file__).resolve().parent


def execute(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The notebook with fresh outputs, and the variables that its cells left behind."""
    notebook, variables = json.loads(path.read_text(encoding="utf-8")), {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        printed = io.StringIO()
        code = compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec")
        with (
            contextlib.chdir(FOLDER),  # where Jupyter runs them
            contextlib.redirect_stdout(printed),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")  # plt.show()
            exec(code, variables)
        cell["execution_count"] = number
        cell["outputs"] = _text(printed.getvalue()) + [_figure(n) for n in plt.get_fignums()]
        plt.close("all")
    return notebook, variables


def _text(printed: str) -> list[dict[str, Any]]:
    lines = printed.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


def _figure(number: int) -> dict[str, Any]:
    picture = io.BytesIO()
    plt.figure(number).savefig(picture, dpi=80, bbox_inches="tight", metadata={"Software": None})
    data = {"image/png": base64.b64encode(picture.getvalue()).decode("ascii")}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


if __name__ == "__main__":
    for path in map(pathlib.Path, sys.argv[1:] or sorted(FOLDER.glob("*.ipynb"))):
        executed, _ = execute(path)
        path.write_text(json.dumps(executed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes")
