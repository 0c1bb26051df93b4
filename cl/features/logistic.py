"""Logistic regression with an L2 penalty, by L-BFGS: the problem and the solution of scikit-learn's.

scikit-learn itself is not among the packages that the library needs.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax

STEPS = 5000  # of L-BFGS, at most


def fit(
    rows: np.ndarray,
    targets: np.ndarray,
    c: float,
    *,
    multilabel: bool = False,
    start: np.ndarray | None = None,
    tolerance: float = 1e-6,
) -> np.ndarray:
    """Weights W and bias b with the smallest c * (sum of cross-entropies) + |W|^2 / 2.

    Between two classes, |w|^2 / 2 of the difference w of their weights replaces |W|^2 / 2.

    Args:
        rows: (N, D).
        targets: (N, C) bool; one label per row, or any number if `multilabel`.
        c: inverse strength of the penalty; the bias has none.
        multilabel: each class against all others, instead of a softmax over classes.
        start: (C, D + 1), an earlier result to begin with; default: zeros.
        tolerance: of the largest derivative, with the objective divided by c N.

    Returns:
        (C, D + 1): W, and b in the last column.
    """
    rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1).astype(np.float64)
    shape = targets.shape[1], rows.shape[1]
    penalty = (2 if len(targets.T) == 2 and not multilabel else 1) / (c * len(rows))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        logits = rows @ flat.reshape(shape).T
        if multilabel:
            likelihood = np.where(targets, log_expit(logits), log_expit(-logits)).sum()
            error = expit(logits) - targets
        else:
            likelihood = log_softmax(logits, axis=1)[targets].sum()
            error = softmax(logits, axis=1) - targets
        weights = flat.reshape(shape) * (np.arange(shape[1]) < shape[1] - 1)
        gradient = error.T @ rows / len(rows) + penalty * weights
        return penalty / 2 * (weights**2).sum() - likelihood / len(rows), gradient.ravel()

    first = np.zeros(shape) if start is None else start
    options = {"gtol": tolerance, "ftol": 0, "maxiter": STEPS, "maxls": 50}
    return minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(shape)
