"""A study of three arms."""

from typing import Any

VALUES: dict[str, Any] = {
    "question": "Is a larger than b?",
    "source": "nowhere",
    "settings": ["evaluation=[knn]"],
    "arms": {"a": ["loss=dcl"], "b": ["loss=infonce"], "c": ["loss=dclw"]},
    "seeds": [0, 1, 2],
    "metric": "knn_top1",
    "comparisons": [{"arm": "a", "than": "b"}, {"arm": "b", "than": "a"}, {"arm": "c", "than": "a"}],
    "limits": "few images",
}
