"""The predictions that an evaluation leaves behind, and its pictures of the worst classes."""

import numpy as np
import pytest
import torch
from PIL import Image

from cl.data.views import centre
from cl.evaluations import EvaluationContext, labels_of, write_predictions
from tests.support.files import read_csv


@pytest.fixture
def predicted(context: EvaluationContext) -> torch.Tensor:
    """All right but for the first image of class 2 and all of class 5, which are taken for class 0."""
    labels = labels_of(context.val, torch.device("cpu"))
    answers = labels.clone()
    answers[(labels == 2).nonzero()[0]] = 0
    answers[labels == 5] = 0
    write_predictions(answers, context, {"pixels": labels})
    return answers


def test_predictions_name_every_labelled_image_once(context, predicted) -> None:
    rows = read_csv(context.out / "predictions.csv")
    assert [row["image"] for row in rows] == [key.decode() for key in context.val.keys]
    assert [row["predicted"] for row in rows] == [context.classes[number] for number in predicted]
    assert [row["pixels"] for row in rows] == [row["truth"] for row in rows]
    for line in read_csv(context.out / "classes.csv"):
        own = [row for row in rows if row["truth"] == line["class"]]
        right = sum(row["predicted"] == row["truth"] for row in own)
        assert (len(own), float(line["top1"])) == (
            int(line["images"]),
            pytest.approx(100 * right / len(own), abs=0.01),
        )


def test_the_worst_classes_are_shown_with_what_they_were_taken_for(context, predicted) -> None:
    rows = read_csv(context.out / "worst/pictures.csv")
    worst, second = context.classes[5], context.classes[2]
    titles = list(dict.fromkeys(row["title"] for row in rows))
    assert titles[0] == f"{worst}: 100 % wrong"
    assert titles[1].startswith(f"{second}: ")
    assert len(titles) == 2, "classes without mistakes are not shown"
    assert {row["caption"] for row in rows} == {context.classes[0]}
    first = int((context.val.labels() == 5).argmax())
    with Image.open(context.out / "worst" / rows[0]["file"]) as picture:
        shown = np.asarray(picture).astype(int)
    assert np.abs(shown - centre(context.val.pixels(first), 96, 96)).mean() < 8, "JPEG of the image"
