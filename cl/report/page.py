"""One self-contained HTML page per experiment: what was run, results beside baselines, how to repeat it.

It shows only results that the parameters name, so files of an earlier experiment are not mistaken for this
one's. A missing result is shown as "not run".
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from cl.report.answer import answer, has_learnt, rivals
from cl.report.curves import drawing, pretraining
from cl.report.experiments import result_names
from cl.report.files import ResultFiles
from cl.report.rows import tables

HEADING = re.compile(r"<h2>(.*?)</h2>")
LISTED = 3  # changed values in a title
MOST_CLASSES = 20  # in a confusion matrix
MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", "|": "\\|"})  # neither tags nor cells of tables


def render(
    params: dict[str, Any], results: Path, command: str | None, titles: dict[str, str], remark: str = ""
) -> tuple[str, str]:
    """The page, and its tables as Markdown.

    `results`: the folder with `<stage>[/<name>].json`, provenance, and folders of tables and pictures.
    `command` runs exactly these parameters; None if repeating the run needs a copy of them.
    `titles`: evaluations, transfers and baselines in words.
    """
    read = ResultFiles(results, pictures=params["report"]["pictures"])
    evaluations, transfers = params["evaluations"], params["transfers"]
    tested = [*(("evaluate", name) for name in evaluations), *(("transfer", name) for name in transfers)]
    by_group, provenance, data = tables(params, read), read.provenance("pretrain"), read.metrics("prepare")
    rows = [row for group in by_group.values() for row in group]
    remarks = [*_remarks(params, read), *filter(None, [remark])]
    context = {
        "params": params,
        "title": _title(params),
        "method": _method(params),
        "command": command,
        "data": data,
        "provenance": provenance,
        "tables": by_group,
        "titles": titles,
        "rivals": {row["name"]: list(rivals(row, titles)) for row in rows if row["lines"]},
        "has_learnt": has_learnt(rows, titles),
        "answer": answer(rows, titles, provenance, remarks),
        "stages": [
            {"name": name.replace("/", "@"), **read.provenance(name)} for name in result_names(params)
        ],
        "curves": pretraining(read),
        "epochs": read.table("pretrain", "epochs.csv"),
        "analyses": {name: _analysis(name, read) for name in params["analyses"]},
        "views": read.picture("pretrain", "views.png"),
        "mistakes": _mistakes(evaluations, read),
        "classes": {name: read.table(f"{stage}/{name}", "classes.csv") for stage, name in tested},
        "detections": {name: read.picture(f"transfer/{name}", "detections.png") for name in transfers},
        "remarks": {name: read.provenance(f"transfer/{name}").get("noted", []) for name in transfers},
    }
    return rendered("report", context)


def rendered(name: str, context: dict[str, Any]) -> tuple[str, str]:
    """A page as HTML, with links to its second-level headings in its <nav>, and as Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        autoescape=jinja2.select_autoescape(("html",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["markdown"] = lambda text: text.translate(MARKDOWN)  # for text that users choose
    html, markdown = (environment.get_template(f"{name}.{kind}").render(context) for kind in ("html", "md"))
    titles = [Markup(title).striptags() for title in HEADING.findall(html)]
    links = [Markup('<a href="#part-{}">{}</a>').format(*each) for each in enumerate(titles)]
    numbers = itertools.count()
    html = HEADING.sub(lambda found: f'<h2 id="part-{next(numbers)}">{found[1]}</h2>', html)
    return html.replace("<nav></nav>", f"<nav>{' '.join(links)}</nav>"), markdown


def _remarks(params: dict[str, Any], read: ResultFiles) -> Iterator[str]:
    """What may make the results too good, and what could not be compared."""
    data = read.metrics("prepare")
    if data.get("classes") and (copies := data.get("copies_in_other_split")):
        found = "copies across training and validation can make results too good"
        yield f"{found} ({copies:.0f}; dataset.deduplicate=true leaves them out)"
    for name in params["baselines"]:
        if why := read.provenance(f"baseline/{name}").get("missing"):
            yield f"no published encoder could be compared: {why}"


def _title(params: dict[str, Any]) -> str:
    name, changed = _method(params)
    listed = ", ".join(changed[:LISTED])
    if (more := len(changed) - LISTED) > 0:
        listed += f" and {more} more"
    method = f"{name} ({listed})" if listed else name
    return f"{method} with {params['loss']['kind']} on {dataset_name(params)}"


def _method(params: dict[str, Any]) -> tuple[str, list[str]]:
    """The method named by the overrides, or else its kind, and the overrides of its parameters."""
    overrides = params["overrides"]
    chosen = [word.removeprefix("method=") for word in overrides if word.startswith("method=")]
    changed = [word.removeprefix("method.") for word in overrides if word.startswith("method.")]
    return chosen[-1] if chosen else params["method"]["kind"], changed


def dataset_name(params: dict[str, Any]) -> str:
    """The name of the data set, or of the folder of your own images."""
    dataset = params["dataset"]
    return dataset.get("name") or dataset["kind"]


def _mistakes(evaluations: Iterable[str], read: ResultFiles) -> dict[str, Any] | None:
    """Confusion matrix and worst classes of the first evaluation that predicts classes."""
    for name in evaluations:
        result = f"evaluate/{name}"
        if matrix := confusion(read.table(result, "predictions.csv")):
            seed, shown = read.folder(result).name, read.provenance(result).get("shown")
            worst = read.picture_rows(result, "worst")
            return {"name": name, "seed": seed, "matrix": matrix, "worst": worst, "shown": shown}
    return None


def confusion(predictions: list[dict[str, str]]) -> dict[str, Any] | None:
    """The confusion matrix of predictions (`truth`, `predicted`): images of each class by predicted class.

    Above MOST_CLASSES, it shows the classes that are confused most, in either direction; the others share a
    column. None if there are no predictions, or no mistakes among many classes.
    """
    counts = Counter((row["truth"], row["predicted"]) for row in predictions)
    classes = columns = sorted({name for pair in counts for name in pair})
    if len(classes) > MOST_CLASSES:
        mistakes = Counter[str]()
        for pair, images in sorted(counts.items()):
            if pair[0] != pair[1]:
                mistakes.update(dict.fromkeys(pair, images))
        columns = sorted(name for name, _ in mistakes.most_common(MOST_CLASSES))
    rows = [_row(truth, columns, counts) for truth in columns]
    return {"classes": columns, "all_classes": len(classes), "rows": rows} if columns else None


def _row(truth: str, columns: list[str], counts: Counter[tuple[str, str]]) -> dict[str, Any]:
    images = sum(number for (name, _), number in counts.items() if name == truth)
    cells = [counts[truth, predicted] for predicted in columns]
    return {
        "name": truth,
        "images": images,
        "cells": [
            {"images": number, "percent": 100 * number / max(1, images), "right": predicted == truth}
            for predicted, number in zip(columns, cells, strict=True)
        ],
        "others": images - sum(cells),
    }


def _analysis(name: str, read: ResultFiles) -> dict[str, Any]:
    """One analysis: its meaning, numbers, charts and pictures; empty if it was not run.

    Pictures and maps are for everybody; other analyses, mostly of a paper's figure, are folded.
    """
    result = f"analyze/{name}"
    provenance = read.provenance(result)
    if not provenance:
        return {}
    saved, pictures = read.charts(result), read.picture_rows(result, "pictures")
    return {
        "about": provenance.get("about", {}).get(name, ""),
        "numbers": read.measurements(result),
        "open": bool(pictures) or any(chart.kind == "points" for chart in saved),
        "drawings": [drawing(replace(chart, name=f"{name}-{chart.name}")) for chart in saved],
        "pictures": pictures,
        "shown": provenance.get("shown"),
    }
