"""Result files of one experiment; a missing file is empty."""

import base64
import csv
import json
from pathlib import Path
from typing import Any

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

    def table(self, result: str, file: str) -> list[dict[str, str]]:
        path = self.folder(result) / file
        if not path.exists():
            return []
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        if any(None in row.values() or None in row for row in rows):
            raise ValueError(
                f"{path} is damaged: a row has too few or too many values; run `dvc checkout` or `dvc repro`"
            )
        return rows

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
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_text(), parse_constant=_refused)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): run `dvc checkout` or `dvc repro`") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} is damaged (expected a JSON object): run `dvc checkout` or `dvc repro`")
        return content


def _refused(constant: str) -> None:
    raise ValueError(f"it contains {constant}")
