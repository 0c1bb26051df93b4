"""JCL against its formula, sampled keys and limits."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.losses import infonce, jcl
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from tests.support.losses import TAU, assert_same
from tests.support.objective import l2_normalize


def jcl_contrast(keys: int = 4) -> Contrast:
    torch.manual_seed(0)
    return Contrast(l2_normalize(6, 5), l2_normalize(6, keys, 5), Negatives(l2_normalize(11, 5)), TAU)


def test_jcl_equals_its_formula_with_the_covariance_matrix() -> None:
    """JCL, eq. S.3, value and gradient; and the cross-entropy form of the authors' code."""
    contrast = jcl_contrast()
    q = contrast.queries.requires_grad_()
    ours = jcl.loss(contrast, jcl.Config(kind="jcl", strength=4.0, ramp=False), 0.3)
    losses, others = [], []
    for i in range(6):
        keys = contrast.positives[i]
        mu = keys.mean(0)
        covariance = sum(torch.outer(k - mu, k - mu) for k in keys) / 4
        t = 4.0 / (2 * TAU**2) * (q[i] @ covariance @ q[i])
        negatives = (contrast.negatives.rows @ q[i] / TAU).exp().sum()
        losses.append(((q[i] @ mu / TAU + t).exp() + negatives).log() - q[i] @ mu / TAU)
        logits = torch.cat([(q[i] @ mu / TAU + t)[None], contrast.negatives.rows @ q[i] / TAU])
        others.append(-F.log_softmax(logits, 0)[0] + t)
    for theirs in (torch.stack(losses).mean(), torch.stack(others).mean()):
        assert_same(ours, theirs, [q])


def test_jcls_limits() -> None:
    """lambda = 0 is InfoNCE against the mean key, one key is InfoNCE; the ramp is linear; the bound holds."""
    plain = infonce.Config(kind="infonce", alpha=None, positives="each")
    contrast = jcl_contrast()
    mean = Contrast(contrast.queries, contrast.positives.mean(1, keepdim=True), contrast.negatives, TAU)

    def value(contrast: Contrast, strength: float, ramp: bool, progress: float) -> Tensor:
        config = jcl.Config(kind="jcl", strength=strength, ramp=ramp)
        return jcl.loss(contrast, config, progress)

    none = value(contrast, 0.0, False, 0.0)
    torch.testing.assert_close(none, infonce.loss(mean, plain, 0.0), rtol=1e-12, atol=1e-12)
    one = jcl_contrast(keys=1)
    torch.testing.assert_close(
        value(one, 4.0, False, 0.0), infonce.loss(one, plain, 0.0), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(value(contrast, 4.0, True, 0.25), value(contrast, 1.0, False, 0.0))
