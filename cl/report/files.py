"""Result files of one experiment; a missing file is empty."""

import base64
import csv
import json
from pathlib import Path
from typing import Any

from cl.runtime.metric_info import Measurement, recorded


class ResultFiles:
    """Reads results below a folder; without `pictures` no picture.

    A result is named `<stage>[/<name>]`; of one repeated over seeds, the files are those of the first seed.
    """

    def __init__(self, root: Path, *, pictures: bool) -> None:
        self.root, self.pictures = root, pictures

    def metrics(self, result: str) -> dict[str, float]:
        return self._json(f"{result}.json")

    def provenance(self, result: str) -> dict[str, Any]:
        return self._json(f"{result}.provenance.json")

    def measurements(self, result: str) -> list[Measurement]:
        """What an evaluation, transfer, analysis or baseline measured."""
        provenance = self.provenance(result)
        return recorded(provenance, result) if provenance else []

    def table(self, result: str, file: str) -> list[dict[str, str]]:
        path = self.folder(result) / file
        if not path.exists():
            return []
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        if any(None in row.values() or None in row for row in rows):
            raise ValueError(
                f"{path} is damaged, a row is cut or too long: run `dvc checkout` or `dvc repro`"
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
        """The rows of pictures that `pictures.csv` lists: title, source, caption and mark of each picture."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for line in self.table(result, f"{folder}/pictures.csv") if self.pictures else ():
            source = self.picture(result, f"{folder}/{line['file']}")
            rows.setdefault(line["row"], []).append({**line, "source": source})
        return list(rows.values())

    def folder(self, result: str) -> Path:
        """The folder of a result's tables and pictures; of several seeds, that of the smallest."""
        path = self.root / result
        seeds = sorted(path.glob("seed-*"), key=lambda seed: int(seed.name.partition("-")[2]))
        return next(iter(seeds), path)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.root / name
        if not path.exists():
            return {}
        try:
            found = json.loads(path.read_text(), parse_constant=_refused)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): run `dvc checkout` or `dvc repro`") from error
        if not isinstance(found, dict):
            raise ValueError(
                f"{path} is damaged, expected names and values: run `dvc checkout` or `dvc repro`"
            )
        return found


def _refused(constant: str) -> None:
    raise ValueError(f"it contains {constant}")
