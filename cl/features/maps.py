"""Two-dimensional maps of features, and each image's nearest neighbours, for programs that explore images."""

import numpy as np
import torch
import torch.nn.functional as F

from cl.features.knn import nearest_in_array

MOST = 10_000  # images that t-SNE takes: its time grows faster than their number
PERPLEXITY = 30.0


def place(features: np.ndarray) -> np.ndarray:
    """Points (N, 2) float32: t-SNE of up to MOST images, by cosine; else the two principal components.

    Source: van der Maaten and Hinton 2008. Equal features give equal points.

    Args:
        features: (N, D) of at least 3 images.

    Raises:
        ValueError: there are fewer.
    """
    from sklearn.decomposition import PCA  # slow to import
    from sklearn.manifold import TSNE

    if len(features) < 3:
        raise ValueError(f"a map needs at least 3 images, found {len(features)}")
    rows = F.normalize(torch.from_numpy(features), dim=1).numpy()
    if len(rows) > MOST:
        return PCA(2, random_state=0).fit_transform(rows).astype(np.float32)
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)
    return points.astype(np.float32)


def neighbours(features: np.ndarray, k: int = 15) -> tuple[np.ndarray, np.ndarray]:
    """The k most similar other images of each of (N, D), or all if fewer, nearest first.

    Returns:
        Rows (N, k) int64, and cosine distances 1 - cosine (N, k) float32.
    """
    k = min(k, len(features) - 1)
    cosines, positions = nearest_in_array(features, features, k + 1)
    itself = positions == np.arange(len(features))[:, None]
    others = itself.argsort(axis=1, kind="stable")[:, :k]  # an image itself goes last
    return np.take_along_axis(positions, others, 1), 1 - np.take_along_axis(cosines, others, 1)
