"""Charts: numbers that analyses save for the report, and their drawing as SVG."""

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup, escape

from cl.runtime.tables import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3a86ff", "#e07a1f", "#2a9d5c", "#b5179e", "#d1343a", "#6c757d", "#17a2b8", "#8a6d3b")
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
MAX_INSIDE = 6  # series whose legend fits inside the axes
MOST_COLOURS = 20  # that can be told apart; more series are grey, without a legend
LONG_LABEL = 60  # characters of a series' label, beyond which a legend would hide the points
LEGEND_WIDTH = 70  # characters that fit below the axes
GREY = "#888888"  # replaced by the colour of the surrounding text
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cl",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    "axes.spines.top": False,
    "axes.spines.right": False,
}
HISTOGRAM_BINS = 40
MARKERS: Any = {"marker": "o", "markersize": 3}
SHAPES: Any = {
    "lines": MARKERS,
    "histogram": {**MARKERS, "drawstyle": "steps-mid"},
    "points": {**MARKERS, "linestyle": ""},
}
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


class Point(NamedTuple):
    """A value `y` at `x`; `sd`: the standard deviation of a mean."""

    x: float
    y: float
    sd: float | None = None


@dataclass
class Chart:
    """Points of one or more series, in the units named by the axis titles.

    kind: lines through points; a histogram (x: bin centres, y: densities); or points alone.
    log: whether the x axis is logarithmic, to base 2.
    """

    name: str
    title: str
    x: str
    y: str
    kind: Literal["lines", "histogram", "points"] = "lines"
    log: bool = False
    series: dict[str, list[Point]] = field(default_factory=dict)

    def add(self, label: str, x: float, y: float, sd: float | None = None) -> None:
        """Add a point to the series `label`; a non-finite point is ignored."""
        if math.isfinite(x) and math.isfinite(y):
            point = Point(float(x), float(y), None if sd is None else float(sd))
            self.series.setdefault(label, []).append(point)

    def add_log(self, rows: list[dict[str, Any]], columns: Mapping[str, str]) -> None:
        """Add columns of a training log by epoch, given with their labels; skips columns that a row lacks."""
        for row in rows:
            for column, label in columns.items():
                if column in row:
                    self.add(label, float(row["epoch"]), float(row[column]))

    def save(self, folder: Path) -> None:
        """Write points to `<name>.csv` and titles to `<name>.chart.json`; nothing for an empty chart."""
        if not self.series:
            return
        rows = (
            [label, *("" if value is None else f"{value:.6g}" for value in point)]
            for label, points in self.series.items()
            for point in points
        )
        write_csv(folder / f"{self.name}.csv", ["series", *Point._fields], rows)
        titles = {key: value for key, value in asdict(self).items() if key != "series"}
        (folder / f"{self.name}.chart.json").write_text(json.dumps(titles, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; `path` is the file with the titles."""
        chart = cls(**json.loads(path.read_text()))
        with path.with_name(f"{chart.name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                sd = float(row["sd"]) if row["sd"] else None
                chart.add(row["series"], float(row["x"]), float(row["y"]), sd)
        return chart

    def svg(self) -> Markup:
        """The drawing in the colour of the surrounding text, with each point's value as a tooltip."""
        import matplotlib  # slow to import

        with matplotlib.rc_context(STYLE):
            figure = self._figure()
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        return Markup(self._annotated(file.getvalue()))

    def _figure(self) -> "Figure":
        import matplotlib
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        colours: Any = COLOURS
        if len(self.series) > len(COLOURS):
            colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
        if len(self.series) > MOST_COLOURS:
            colours = ["gray"]
        for number, points in enumerate(self.series.values()):
            self._draw(axes, points, colours[number % len(colours)], f"points-{number}")
        axes.set(xlabel=self.x, ylabel=self.y)
        if self.log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        elif all(point.x.is_integer() for points in self.series.values() for point in points):
            axes.locator_params("x", integer=True)
        self._add_legend(figure, axes)
        return figure

    def _add_legend(self, figure: "Figure", axes: "Axes") -> None:
        """Inside the axes for few series, right of them for more, below if labels are long, or none."""
        lines, labels = axes.lines, [label.replace("$", r"\$") for label in self.series]  # no formulas
        if not 1 < len(labels) <= MOST_COLOURS:
            return
        if max(map(len, labels)) > LONG_LABEL:
            labels = [textwrap.fill(label, LEGEND_WIDTH) for label in labels]
            rows = sum(label.count("\n") + 1 for label in labels)
            figure.set_figheight(figure.get_figheight() + rows / 6)
            figure.legend(lines, labels, frameon=False, fontsize=8, loc="outside lower center")
        elif len(labels) <= MAX_INSIDE:
            axes.legend(lines, labels, frameon=False, fontsize=8)
        else:
            figure.set_figwidth(7)
            place: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            axes.legend(lines, labels, frameon=False, fontsize=6, **place)

    def _draw(self, axes: "Axes", points: list[Point], colour: Any, gid: str) -> None:
        x, y, sd = (np.array([getattr(point, key) or 0.0 for point in points]) for key in Point._fields)
        (line,) = axes.plot(x, y, color=colour, linewidth=1.3, **SHAPES[self.kind])
        line.set_gid(gid)
        if self.kind == "histogram":
            line.set_markersize(1.5)
            axes.fill_between(x, y, step="mid", color=colour, alpha=0.15, linewidth=0)
        if any(point.sd for point in points):
            axes.fill_between(x, y - sd, y + sd, color=colour, alpha=0.15, linewidth=0)

    def _annotated(self, svg: str) -> str:
        """The SVG with a tooltip for each point, and ids that are unique on a page with many charts."""
        root = ElementTree.fromstring(svg[svg.index("<svg") :].replace(GREY, "currentColor"))
        for number, (label, points) in enumerate(self.series.items()):
            markers = root.findall(f".//*[@id='points-{number}']//{{{SVG}}}use")
            for marker, point in zip(markers, points, strict=True):
                spread = "" if point.sd is None else f" ± {point.sd:.3g}"
                tooltip = f"{label}, {self.x} {point.x:.4g}: {point.y:.4g}{spread}"
                ElementTree.SubElement(marker, f"{{{SVG}}}title").text = tooltip
        text = ElementTree.tostring(root, encoding="unicode")
        text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        return text.replace("<svg", f'<svg role="img" aria-label="{escape(self.title)}"', 1)


def histogram(
    name: str, title: str, x: str, values: dict[str, np.ndarray], span: tuple[float, float] | None = None
) -> Chart:
    """Density histograms of each series over common bins in `span`, by default of all values."""
    chart = Chart(name, title, x, "density", "histogram")
    edges = np.histogram_bin_edges(np.concatenate(list(values.values())), HISTOGRAM_BINS, span)
    for label, numbers in values.items():
        density, _ = np.histogram(numbers, edges, density=True)
        for centre, height in zip((edges[:-1] + edges[1:]) / 2, density, strict=True):
            chart.add(label, centre, height)
    return chart
