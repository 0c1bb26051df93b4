"""Numbers of things in messages, and reasons why files are left out, grouped and printed."""

from collections import Counter
from pathlib import PurePath

import pytest

from cl.console.wording import MOST, counted, grouped, lines
from cl.images.folders import wrong_suffix


@pytest.mark.parametrize(
    ("things", "one"),
    [
        ("images", "1 image"),
        ("test images", "1 test image"),
        ("classes", "1 class"),
        ("processes", "1 process"),
        ("boxes", "1 box"),
        ("images of this process", "1 image of this process"),
    ],
)
def test_one_thing_is_singular(things, one) -> None:
    assert counted(1, things) == one
    assert counted(0, things) == f"0 {things}"
    assert counted(12, things) == f"12 {things}"


def test_messages_that_differ_in_numbers_are_one_reason() -> None:
    """Numbers that are the same in all of them stay; another reason with as many numbers is not mixed in."""
    found = Counter({f"{number} of 512 bytes": number for number in range(1, 101)})
    others = {"N of 512 bytes, cut": 1, "no": 4}
    found |= Counter({"60x70 px, at most 50": 2, "60x80 px, at most 50": 3, **others})
    assert grouped(found) == {"N of 512 bytes": 5050, "60xN px, at most 50": 5, **others}


def test_a_literal_n_is_no_number() -> None:
    assert grouped(Counter({"N bytes": 1, "1 bytes": 2, "2 bytes": 3})) == {"N bytes": 6}


def test_the_most_frequent_reasons_are_printed_and_the_others_counted() -> None:
    reasons = Counter({letter: count for count, letter in enumerate("abcdefg", 1)})
    said = lines(reasons, "images")
    assert said[0] == "left out 7 images: g"
    assert len(said) == MOST + 1
    assert said[-1] == "left out 3 images for 2 other reasons"
    assert lines(Counter()) == []
    suffixes = Counter({f"with suffix .{letter}": count for count, letter in enumerate("abcdef", 1)})
    assert lines(suffixes + Counter(hidden=1)) == [
        "left out 21 files: with suffix .f, .e, .d, .c, .b, ...",
        "left out 1 file: hidden",
    ]


def test_the_numbers_of_dicom_are_one_reason() -> None:
    names = [f"1.2.840.113619.{number}" for number in range(5)]
    assert {wrong_suffix(PurePath(name)) for name in names} == {"with a number as suffix"}
