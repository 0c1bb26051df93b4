"""Whether features tell the values of columns, against the nearest images found one by one."""

import numpy as np
import pytest
import torch.nn.functional as F

from cl.data.sets import EvalSet
from cl.evaluations import EvaluationContext, predict
from cl.features.extraction import Pixels, extract
from tests.support.project import compose

CONFIG = predict.Config(kind="predict", images=2000, k=3)
OWN = ("recipe=own/small", "dataset=table", "dataset.name=birds", "baseline=[]")


def test_columns_are_found_from_other_groups_and_beside_chance(context: EvaluationContext) -> None:
    """Here the class, which pixels tell, and a random column; an image without a value does not count."""
    val = context.val
    label = np.where(np.arange(len(val)) < 3, -1 - np.arange(len(val)), val.labels())
    val.values = {"within": label, "positive": label}
    found = predict.evaluate(CONFIG, context)
    found = found["backbone"] | found["pixels"]
    known = label[label >= 0]
    rows = F.normalize(extract(Pixels(), EvalSet(val, context.transform), context.machine), dim=1)[label >= 0]
    similar = (rows @ rows.T).fill_diagonal_(-2).argmax(1).numpy()
    counts = np.bincount(known)
    assert found["positive_nearest"] == pytest.approx(100 * (known[similar] == known).mean())
    chance = 100 * ((counts[known] - 1) / (len(known) - 1)).mean()
    assert found["positive_chance"] == pytest.approx(chance)
    assert found["within_chance"] == pytest.approx(100 * counts.max() / len(known))
    assert min(found["within_knn"], found["within_linear"]) > 2 * found["within_chance"]
    images = len(known) / (1 + 5 / 4)  # five folds share training images
    assert found["within_knn"].images == found["within_linear"].images == pytest.approx(images)
    val.groups = val.labels()
    val.values = {"within": label}
    assert predict.evaluate(CONFIG, context)["pixels"] == {}, "no other group has the value"
    classes = val.labels()
    val.values = {"within": np.where(classes == 3, 2, classes % 2)}  # one group has the value 2
    odd, even = int((classes % 2 * (classes != 3)).sum()), int((classes % 2 == 0).sum())
    found = predict.evaluate(CONFIG, context)["backbone"]
    assert found["within_chance"] == pytest.approx(100 * max(odd, even) / (odd + even))
    val.groups, val.values = None, {"within": np.random.default_rng(0).permutation(np.arange(len(val)) % 2)}
    assert 20 < predict.evaluate(CONFIG, context)["pixels"]["within_linear"] < 80
    val.values = {"within": 0 * label}
    assert predict.evaluate(CONFIG, context)["pixels"] == {}, "one value"


def test_it_is_part_of_recipes_if_the_data_has_columns(tmp_path) -> None:
    assert "predict" not in compose(tmp_path, *OWN)["evaluations"]
    assert "predict" in compose(tmp_path, *OWN, "dataset.within=site")["evaluations"]
