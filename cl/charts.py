"""Charts: what an analysis hands to the report, as a table of numbers, and how it is drawn."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#3a86ff", "#e07a1f", "#2a9d5c", "#b5179e", "#d1343a", "#6c757d", "#17a2b8", "#8a6d3b")
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FEW = 6  # series whose legend has room in the drawing
GREY = "#888888"  # becomes the colour of the text around
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cl",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BINS, TOLD = 40, 24
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


class Point(NamedTuple):
    """A value `y` at `x`, and its standard deviation if it is a mean."""

    x: float
    y: float
    sd: float | None = None


@dataclass
class Chart:
    """Points of one or more series, in the units of the axes' titles.

    kind: lines through points; a histogram, whose x are the middles of bins and y densities; or points alone.
    log: the x axis is logarithmic, to base 2.
    """

    name: str
    title: str
    x: str
    y: str
    kind: Literal["lines", "histogram", "points"] = "lines"
    log: bool = False
    series: dict[str, list[Point]] = field(default_factory=dict)

    def add(self, label: str, x: float, y: float, sd: float | None = None) -> None:
        """One more point of the series `label`; nothing that is not finite."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        self.series.setdefault(label, []).append(Point(float(x), float(y), None if sd is None else float(sd)))

    def save(self, folder: Path) -> None:
        """`<name>.csv`, one row a point, and `<name>.chart.json` with the titles; nothing where there is no point."""
        if not self.series:
            return
        with (folder / f"{self.name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["series", *Point._fields])
            for label, points in self.series.items():
                writer.writerows(
                    [label, *("" if number is None else f"{number:.6g}" for number in point)]
                    for point in points
                )
        titles = {key: value for key, value in asdict(self).items() if key != "series"}
        (folder / f"{self.name}.chart.json").write_text(json.dumps(titles, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote; `path` is that of the titles."""
        chart = cls(**json.loads(path.read_text()))
        with path.with_name(f"{chart.name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                chart.add(
                    row["series"], float(row["x"]), float(row["y"]), float(row["sd"]) if row["sd"] else None
                )
        return chart

    def described(self) -> str:
        """The chart in words, for those who do not see it."""
        parts = [f"{self.title}. {self.y} by {self.x}"]
        for label, points in list(self.series.items())[:TOLD]:
            if self.kind == "lines":
                parts.append(
                    f"{label}: {points[0].y:.4g} at {points[0].x:g} to {points[-1].y:.4g} at {points[-1].x:g}"
                )
            elif self.kind == "histogram":
                parts.append(f"{label}: most often {max(points, key=lambda point: point.y).x:.3g}")
            else:
                parts.append(f"{label}: {len(points)} points")
        if len(self.series) > TOLD:
            parts.append(f"and {len(self.series) - TOLD} more")
        return "; ".join(parts)

    def svg(self) -> Markup:
        """The drawing, with the text's own colour and the values of each point where the pointer rests."""
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(5.2, 2.9), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.add_subplot()
            axes.patch.set_alpha(0)
            colours = COLOURS if len(self.series) <= len(COLOURS) else matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
            for number, (label, points) in enumerate(self.series.items()):
                self._draw(axes, points, label, colours[number % len(colours)], f"points-{number}")
            axes.set(xlabel=self.x, ylabel=self.y)
            if self.log:
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
            if 1 < len(self.series) <= FEW:
                axes.legend(frameon=False, fontsize=8)
            elif len(self.series) > FEW:
                figure.set_figwidth(7)
                axes.legend(
                    frameon=False,
                    fontsize=6,
                    loc="upper left",
                    bbox_to_anchor=(1, 1),
                    ncols=-(-len(self.series) // 20),
                )
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        return Markup(self._annotated(file.getvalue()))

    def _draw(self, axes: Axes, points: list[Point], label: str, colour: Any, gid: str) -> None:
        x, y, sd = (np.array([getattr(point, key) or 0.0 for point in points]) for key in Point._fields)
        shapes: dict[str, Any] = {
            "lines": {"marker": "o", "markersize": 3},
            "histogram": {"marker": "o", "markersize": 3, "drawstyle": "steps-mid"},
            "points": {"marker": "o", "markersize": 3, "linestyle": ""},
        }
        (line,) = axes.plot(x, y, color=colour, label=label, linewidth=1.3, **shapes[self.kind])
        line.set_gid(gid)
        if self.kind == "histogram":
            line.set_markersize(1.5)
            axes.fill_between(x, y, step="mid", color=colour, alpha=0.15, linewidth=0)
        if any(point.sd for point in points):
            axes.fill_between(x, y - sd, y + sd, color=colour, alpha=0.15, linewidth=0)

    def _annotated(self, svg: str) -> str:
        """With the values of the points, and ids that no other chart of a page has."""
        root = ElementTree.fromstring(svg[svg.index("<svg") :].replace(GREY, "currentColor"))
        for number, (label, points) in enumerate(self.series.items()):
            markers = root.findall(f".//*[@id='points-{number}']//{{{SVG}}}use")
            for marker, point in zip(markers, points, strict=True):
                ElementTree.SubElement(marker, f"{{{SVG}}}title").text = self._value(label, point)
        text = ElementTree.tostring(root, encoding="unicode")
        text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        label = self.described().replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
        return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

    def _value(self, label: str, point: Point) -> str:
        spread = "" if point.sd is None else f" ± {point.sd:.3g}"
        return f"{label}, {self.x} {point.x:.4g}: {point.y:.4g}{spread}"


def histogram(
    name: str, title: str, x: str, values: dict[str, np.ndarray], span: tuple[float, float] | None = None
) -> Chart:
    """Densities of the values of each series over bins that all share, between `span` or the least and the largest value."""
    chart = Chart(name, title, x, "density", "histogram")
    edges = np.histogram_bin_edges(np.concatenate(list(values.values())), BINS, span)
    for label, numbers in values.items():
        density, _ = np.histogram(numbers, edges, density=True)
        for middle, height in zip((edges[:-1] + edges[1:]) / 2, density, strict=True):
            chart.add(label, middle, height)
    return chart


def of_folder(folder: Path) -> Iterator[Chart]:
    """The charts that were saved there."""
    for path in sorted(folder.glob("*.chart.json")):
        yield Chart.load(path)
