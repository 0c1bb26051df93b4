"""search: the images most similar to others."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from cl.commands.defaults import ENCODER, MATCHES
from cl.commands.embed import embed
from cl.commands.inputs import matching
from cl.commands.inputs.feature_files import Features
from cl.commands.outputs import pictures
from cl.commands.paths import PAGE_OR_TABLE, File, Inputs, target_of
from cl.console.command import progress
from cl.console.progress import silent
from cl.data.transform import Transform
from cl.encoders.encoder import Encoder
from cl.features.knn import nearest_in_array
from cl.runtime.tables import columns_of, write_table

SHOWN = 10  # queries, and images of each, in a notebook
LONG = 10**9  # pairs of a query and an image; comparing more shows the progress


class Match(NamedTuple):
    """An image similar to a query, and its rank from 1."""

    query: str
    rank: int
    name: str
    cosine: float


@dataclass(frozen=True, repr=False)
class Matches:
    """The images most similar to each of Q queries, most similar first.

    queries: Q names.
    names: N names of the searched images.
    positions: (Q, top) positions in `names`, int64.
    cosines: (Q, top) float32.
    files, folder: of the pictures of the queries, and of the searched images.
    transform: how the encoder sees pictures.
    """

    queries: list[str]
    names: list[str]
    positions: np.ndarray
    cosines: np.ndarray
    files: list[Path]
    folder: Path
    transform: Transform

    def __repr__(self) -> str:
        """One line; `rows` has all."""
        queries, top = self.positions.shape
        return f"Matches(queries: {queries}, images each: {top} of {len(self.names)})"

    def _repr_html_(self) -> str:
        """What notebooks show: the first pictures of the first queries."""
        rows = (row[: 1 + SHOWN] for row in islice(self.pictures(), SHOWN))
        return "".join(pictures.html(rows, self.transform.picture_of))

    def rows(self) -> Iterator[Match]:
        """Every match."""
        for query, positions, cosines in zip(self.queries, self.positions, self.cosines, strict=True):
            for rank, (position, cosine) in enumerate(zip(positions.tolist(), cosines.tolist(), strict=True)):
                yield Match(query, rank + 1, self.names[position], cosine)

    def pictures(self) -> Iterator[list[tuple[Path, str]]]:
        """For each query: its picture and those found, and what to write below them."""
        rows, top = self.rows(), self.positions.shape[1]
        for file, query in zip(self.files, self.queries, strict=True):
            found = islice(rows, top)
            yield [
                (file, query),
                *((self.folder / other, f"{cosine:.3f} {other}") for _, _, other, cosine in found),
            ]


def search(
    features: File,
    queries: Inputs,
    *,
    encoder: File | Encoder = ENCODER,
    top: int = MATCHES,
    to: File | None = None,
    prefix: str | None = None,
) -> Matches:
    """The `top` images with the largest cosine similarity to each query; of equal ones the first.

    Args:
        features: a file of `cl embed`.
        queries: names in `features`, which do not find themselves; images, folders, lists or tables of
            images; or files of features. A name comes before a file of that name: `./a.jpg` is the file.
        encoder: what gave the features; a file or name that `cl.load` takes, or what it returned. Names and
            files of features need none.
        top: images per query; all if there are fewer.
        to: a file to write: .html with the pictures, or .csv or .parquet with the columns query, rank, name
            and cosine.
        prefix: which encoder to use if the file contains several.

    Raises:
        ValueError: a file is missing or damaged, features came from another encoder or are not finite.
    """
    path = Path(features).expanduser()
    target = target_of(to, path, queries, encoder, suffixes=PAGE_OR_TABLE)
    bank = matching.read(path)
    given = [queries] if isinstance(queries, str | PathLike) else queries
    parts = _queries([fspath(query) for query in given], bank, path, encoder, prefix)
    names = [name for part, _ in parts for name in part.names]
    rows = np.concatenate([part.features for part, _ in parts]) if len(parts) > 1 else parts[0][0].features
    own = np.concatenate([positions for _, positions in parts])
    top = min(top, len(bank.names) - bool((own >= 0).any()))
    show = progress("search").count if len(names) * len(bank.names) > LONG else silent
    cosines, positions = nearest_in_array(rows, bank.features, min(top + 1, len(bank.names)), show)
    last = (positions == own[:, None]).argsort(axis=1, kind="stable")[:, :top]  # a query itself goes last
    matches = Matches(
        names,
        bank.names,
        np.take_along_axis(positions, last, 1),
        np.take_along_axis(cosines, last, 1),
        files=[Path(part.notes.get("folder", "")) / name for part, _ in parts for name in part.names],
        folder=Path(bank.notes.get("folder", "")),
        transform=matching.transform_of(bank),
    )
    if target and target.suffix == ".html":
        if "folder" not in bank.notes:
            progress("search").say(f"{path} does not record the folder of its images; looking for them here")
        sha256 = bank.notes.get("sha256", "")[:12] or "not recorded"
        about = (
            "Left of the bar: a query. Right: the most similar images, with cosines. "
            f"Features: {path}, by {bank.notes.get('encoder', 'an encoder')} (sha256 {sha256})"
        )
        pictures.write(target, "Similar images", about, matches.pictures(), matches.transform.picture_of)
    elif target:
        write_table(target, columns_of(Match, [*matches.rows()]))
    return matches


def _queries(
    queries: list[str],
    bank: Features,
    path: Path,
    encoder: File | Encoder,
    prefix: str | None,
) -> list[tuple[Features, np.ndarray]]:
    """Features of the queries: of images, then names and files; and their positions in the bank, else -1."""
    parts, images = [], []
    known = {normalize("NFC", name): position for position, name in enumerate(bank.names)}
    known |= {name: position for position, name in enumerate(bank.names)}
    for given in queries:
        query = Path(given).expanduser()
        if (position := known.get(given, known.get(normalize("NFC", given)))) is not None:
            row = bank.features[position : position + 1]
            parts.append((Features([bank.names[position]], row, bank.notes), np.array([position])))
        elif query.is_file() and matching.is_features(query):
            other = matching.read(query)
            matching.check_same_features(bank, other, (path, query), progress("search").say)
            own = np.arange(len(other.names)) if query.samefile(path) else np.full(len(other.names), -1)
            parts.append((other, own))
        elif query.exists():
            images.append(query)
        else:
            raise ValueError(f"no file {query}, and no image of that name in {path}; give one of them")
    if not queries:
        raise ValueError("no queries given; give images, files of features or names of images")
    if images:
        embedded = embed(
            images, encoder=matching.encoder_of(bank, path, encoder, prefix, progress("search").say)
        )
        assert embedded
        parts.insert(0, (embedded, np.full(len(embedded.names), -1)))
    return parts
