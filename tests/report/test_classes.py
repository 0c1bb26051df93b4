"""The confusion matrix."""

from cl.report.page import MOST_CLASSES, confusion


def predictions(*pairs: tuple[str, str, int]) -> list[dict[str, str]]:
    return [{"truth": truth, "predicted": taken} for truth, taken, images in pairs for _ in range(images)]


def test_every_image_is_in_the_cell_of_its_class_and_prediction() -> None:
    matrix = confusion(predictions(("cat", "cat", 3), ("cat", "dog", 1), ("dog", "dog", 2)))
    assert matrix["classes"] == ["cat", "dog"]
    cat, dog = matrix["rows"]
    assert [(cell["images"], cell["percent"], cell["right"]) for cell in cat["cells"]] == [
        (3, 75, True),
        (1, 25, False),
    ]
    assert (cat["images"], cat["others"], dog["images"]) == (4, 0, 2)
    assert confusion([]) is None


def test_of_many_classes_only_the_most_confused_are_shown() -> None:
    names = [f"class {n:02}" for n in range(MOST_CLASSES + 5)]
    pairs = [(name, name, 10) for name in names]
    pairs += [(name, names[0], 2) for name in names[6:]]
    pairs += [(names[7], names[1], 1)]  # class 1 is confused once, others twice
    matrix = confusion(predictions(*pairs))
    assert matrix["all_classes"] == MOST_CLASSES + 5
    assert len(matrix["classes"]) == MOST_CLASSES
    assert set(matrix["classes"]) == {names[0], *names[6:]}
    for row in matrix["rows"]:
        assert sum(cell["images"] for cell in row["cells"]) + row["others"] == row["images"]
