"""The main curves as PNG files, from the same series as the page's."""

import pathlib
from collections.abc import Sequence

from matplotlib.figure import Figure

from sera_jax.report.charts import CHARTS, Chart, Series
from sera_jax.report.runs import Run

COLOURS = ("#2563eb", "#d97706", "#0d9488", "#c026d3", "#64748b", "#dc2626", "#65a30d")
DPI = 200


def write(runs: Sequence[Run], folder: pathlib.Path) -> list[pathlib.Path]:
    """One PNG a chart that has data, runs side by side on one scale."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in CHARTS:
        panels = [chart.series(run.metrics) for run in runs]
        if chart.main and any(panels):
            path = folder / f"{chart.name}.png"
            _draw(chart, [run.name for run in runs], panels).savefig(path, dpi=DPI)
            written.append(path)
    return written


def _draw(chart: Chart, names: Sequence[str], panels: Sequence[Sequence[Series]]) -> Figure:
    figure = Figure(figsize=(0.6 + 4.4 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    names_of_colours = dict.fromkeys(s.colour or s.name for panel in panels for s in panel)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names_of_colours)}
    for axis, name, panel in zip(axes, names, panels, strict=True):
        if chart.stacked and panel:
            _stack(axis, panel, colours)
        for series in () if chart.stacked else panel:
            style = {"color": colours[series.colour or series.name], "label": series.name}
            axis.plot(
                series.x,
                series.y,
                "--" if series.dashed else "-",
                marker="o" if len(series.x) < 40 else "",
                markersize=3,
                **style,
            )
            if series.low:
                axis.fill_between(
                    series.x, series.low, series.high, color=style["color"], alpha=0.15, lw=0
                )
        axis.set_title(name if len(panels) > 1 else chart.title, fontsize=10)
        axis.set_xlabel("optimizer step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if panel:
            axis.legend(fontsize=8, frameon=False)
    if len(panels) > 1:
        figure.suptitle(chart.title, fontsize=11)
    if chart.scale == "rate":
        axes[0].set_ylim(-0.02, 1.02)
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    elif chart.scale == "log":
        axes[0].set_yscale("log")
    return figure


def _stack(axis, panel: Sequence[Series], colours: dict[str, str]) -> None:
    steps = sorted({x for series in panel for x in series.x})
    values = [dict(zip(series.x, series.y, strict=True)) for series in panel]
    axis.stackplot(
        steps,
        [[value.get(step, 0.0) for step in steps] for value in values],
        labels=[series.name for series in panel],
        colors=[colours[series.name] for series in panel],
        alpha=0.8,
    )
