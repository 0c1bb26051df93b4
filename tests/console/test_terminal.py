"""A terminal of 80 columns."""

import re
import sys

import pytest

from tests.support.terminal import COLUMNS, on_a_terminal

SHOW = (sys.executable, "-m", "tests.support.terminal")
TIME_LEFT = re.compile(r" (-:--:--|\d+:\d\d:\d\d)( |$)")


@pytest.mark.slow
def test_the_time_left_is_always_visible_below_the_epochs() -> None:
    lines, last = on_a_terminal(*SHOW)
    bars = [line for line in last if line]
    assert len(bars) > 3
    for bar in bars:
        assert len(bar) <= COLUMNS
        assert bar.startswith("pretrain (steps) ━"), bar
        assert TIME_LEFT.search(bar), bar
    assert any(re.search(r"\d:\d\d:\d\d epoch 2, loss 12.3", bar) for bar in bars), bars
    epochs = [line for line in lines if line.startswith("pretrain: epoch")]
    expected = r"pretrain: epoch \d, loss 12.346, kNN 67.9 %, \d+[.]\d images/s"
    assert [bool(re.fullmatch(expected, line)) for line in epochs] == [True] * 3, epochs
    assert all(len(line) <= COLUMNS for line in lines)


@pytest.mark.slow
def test_a_long_count_shows_the_time_left() -> None:
    _, last = on_a_terminal(*SHOW, "images of this process")
    bars = [line for line in last if line]
    for bar in bars:
        assert len(bar) <= COLUMNS
        assert "embed (images of this process)" in bar
        assert "/100000000" in bar
        assert TIME_LEFT.search(bar), bar
    assert any(re.search(r" \d+:\d\d:\d\d", bar) for bar in bars), "it is never known"
