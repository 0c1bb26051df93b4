"""Charts: read back as written, and drawn with all their values."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from cl.report.charts import Chart, histogram


def test_a_chart_is_read_back_as_it_was(tmp_path) -> None:
    chart = Chart("a", 'less < "more"', "x & y", "%", log=True)
    chart.add("first", 1, 2.5, 0.25)
    chart.add("first", 2, 3.5, 0.5)
    chart.add("second, <b>", 1, -1)
    chart.save(tmp_path)
    assert Chart.load(tmp_path / f"{chart.name}.chart.json") == chart
    Chart("empty", "", "", "").save(tmp_path)
    assert len(list(tmp_path.glob("*.chart.json"))) == 1


def test_a_drawing_shows_its_values_and_has_unique_ids() -> None:
    chart = Chart("a", 'less < "more"', "x & y", "%")
    for x in (1, 2, 4):
        chart.add("first, <b>", x, x / 3, 0.1)
        chart.add("second", x, -x)
    other = histogram("b", "t", "v", {"one": np.random.default_rng(0).normal(size=500)})
    pages = [chart.svg(), other.svg()]
    marks = ElementTree.fromstring(pages[0]).iter("{http://www.w3.org/2000/svg}use")
    told = [(float(mark.get("x")), mark[0].text) for mark in marks if len(mark)]
    assert [text for _, text in sorted(told)] == [
        *("first, <b>, x & y 1: 0.3333 ± 0.1", "second, x & y 1: -1"),
        *("first, <b>, x & y 2: 0.6667 ± 0.1", "second, x & y 2: -2"),
        *("first, <b>, x & y 4: 1.333 ± 0.1", "second, x & y 4: -4"),
    ]
    ids = [re.findall(r' id="([^"]+)"', page) for page in pages]
    assert not set(ids[0]) & set(ids[1])
    for page, own in zip(pages, ids, strict=True):
        assert len(own) == len(set(own))
        assert set(re.findall(r'(?:href="|url\()#([\w-]+)', page)) <= set(own)
        assert "#888888" not in page
    assert pages[1] == other.svg(), "the same bytes every time"
    densities = [point.y for point in other.series["one"]]
    width = other.series["one"][1].x - other.series["one"][0].x
    assert sum(densities) * width == pytest.approx(1)


@pytest.mark.parametrize(("series", "named"), [(3, 3), (20, 20), (21, 0)])
def test_every_series_has_its_name_in_the_legend_if_it_has_its_own_colour(series, named) -> None:
    """Class folders may have names that matplotlib would read as formulas, or leave out."""
    names = ["US$ to A$", "a$_$", "_background", *map("class {}".format, range(series - 3))]
    chart = Chart("a", "t", "x", "y", "points")
    for name in names:
        chart.add(name, 1, 2)
    page = chart.svg()
    assert [text for text in re.findall(r"<text [^>]*>([^<]+)</text>", page) if text in names] == names[
        :named
    ]
    assert len(set(re.findall(r"<use [^>]*fill: (#\w+)", page))) == (named or 1)
    assert all(f"<title>{name}, x 1: 2</title>" in page for name in names)
