"""Parameters that a method refuses."""

import pytest

from cl import config
from tests.support.project import TINY, compose

GROUPED = "bn_group=16 method.group.images"
REFUSED = {
    "method=dino method.teacher_temperature.epochs=0": "epochs=0: input should be greater than 0",
    "method=swav method.frozen_epochs=2": "method.frozen_epochs=2 leaves none of the 2 epochs",
    "method=swav method.queue=100 method.queue_epoch=2": "queue_epoch=2 leaves none of the 2 epochs",
    "method=swav method.prototypes=1": "method.prototypes=1: input should be greater than 1",
    "method=cpc_v2 method.grid=4": "method.grid=4 needs views divisible by 5, found 32 px",
    "method=cpc_v2 method.offsets=[1,3]": r"offsets=\[1, 3\] must be distinct numbers from \[1, 2\]",
    "method=cpc_v2 method.offsets=[1,1]": r"offsets=\[1, 1\] must be distinct numbers from \[1, 2\]",
    "method=pirl views.image.count=2": "found 2 x image, 9 x patches; choose views=pirl or",
    "method=cmc backbone=resnet18": "method.kind=cmc needs two networks .*resnet18_lab",
    f"method=npid_cld {GROUPED}=12": "method.group.images=12 must divide .* 32 images",
    f"method=moco_cld {GROUPED}=1": "method.group.images=1 must divide .* 32 images",
    "method=moco_cld method.projector.last_norm=plain method.projector.last_bias=false": (
        "projector.last_norm=plain, .* choose none or cosine"
    ),
    "method=local_aggregation method.warmup_epochs=2": "method.warmup_epochs=2 leaves none of the 2 epochs",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_does_not_fit_is_refused(overrides, tmp_path) -> None:
    with pytest.raises(ValueError, match=REFUSED[overrides]):
        config.check(compose(tmp_path, *TINY, *overrides.split()))


def test_a_part_of_the_batch_may_be_clustered_by_itself(tmp_path) -> None:
    overrides = (*TINY, "method=moco_cld", *f"{GROUPED}=16".split())
    assert config.check(compose(tmp_path, *overrides)).method.group.images == 16
