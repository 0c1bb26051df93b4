"""Result files of one experiment; a missing file is empty."""

import base64
import csv
import json
from pathlib import Path
from typing import Any

from cl.report.charts import Chart
from cl.runtime.metric_info import Measurement


class ResultFiles:
    """Reads results below a folder; skips pictures unless `pictures`.

    Results are named `<stage>[/<name>]`. If one was repeated over seeds, its files are the first seed's.
    """

    def __init__(self, root: Path, *, pictures: bool) -> None:
        self.root, self.pictures = root, pictures

    def metrics(self, result: str) -> dict[str, float]:
        return self._json(f"{result}.json")

    def provenance(self, result: str) -> dict[str, Any]:
        return self._json(f"{result}.provenance.json")

    def measurements(self, result: str) -> list[Measurement]:
        """The measurements of an evaluation, transfer, analysis or baseline."""
        return [Measurement(**values) for values in self.provenance(result).get("measurements", [])]

    def charts(self, result: str) -> list[Chart]:
        return [Chart.load(path) for path in sorted(self.folder(result).glob("*.chart.json"))]

    def table(self, result: str, file: str) -> list[dict[str, str]]:
        path = self.folder(result) / file
        if not path.exists():
            return []
        with path.open(newline="") as stream:
            return list(csv.DictReader(stream))

    def picture(self, result: str, file: str) -> str | None:
        """The picture as a data URL."""
        path = self.folder(result) / file
        if not self.pictures or not path.exists():
            return None
        kind = "jpeg" if path.suffix == ".jpg" else "png"
        return f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode()

    def picture_rows(self, result: str, folder: str) -> list[list[dict[str, Any]]]:
        """The rows of pictures in `pictures.csv`: title, source, caption and mark of each picture."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for line in self.table(result, f"{folder}/pictures.csv") if self.pictures else ():
            source = self.picture(result, f"{folder}/{line['file']}")
            rows.setdefault(line["row"], []).append({**line, "source": source})
        return list(rows.values())

    def folder(self, result: str) -> Path:
        """The folder of a result's tables and pictures; with several seeds, the smallest seed's."""
        path = self.root / result
        seeds = sorted(path.glob("seed-*"), key=lambda seed: int(seed.name.partition("-")[2]))
        return next(iter(seeds), path)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.root / name
        return json.loads(path.read_text()) if path.exists() else {}
