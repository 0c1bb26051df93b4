"""The benchmark of listing: every synthetic name once, in order, and figures for each part."""

import re

from benchmarks import listing
from benchmarks.parameters import parameters


def test_every_part_is_measured(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["listing", "3000"])
    listing.main()
    rows = re.findall(
        r"^(\w+).* 3,000 images +[\d.]+ s +\d+ MiB +\d+ bytes per image$", capsys.readouterr().out, re.M
    )
    assert rows == ["list", "plan", "map"]


def test_names_are_listed_once_and_in_order() -> None:
    found = listing.listed(parameters("dataset=unlabelled", "dataset.name=own").dataset, 3000)
    names = [str(image.path) for images in (found.train, found.val) for image in images]
    assert len(set(names)) == len(names) == 3000
    assert [image.path for image in found.train] == sorted(image.path for image in found.train)
