"""The benchmark of listing: every synthetic name once, in order, and figures for each part."""

import re

from benchmarks import listing


def test_every_part_is_measured(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["listing", "3000"])
    listing.main()
    rows = re.findall(
        r"^(\w+).* 3,000 images +[\d.]+ s +\d+ MiB +\d+ bytes per image$", capsys.readouterr().out, re.M
    )
    assert rows == ["list", "plan", "map"]
