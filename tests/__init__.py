"""The tests; each worker of pytest-xdist keeps to a core of its own, from before it imports NumPy."""

import os

from tests.support.processes import keep_to_one_core

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    keep_to_one_core(int(worker.removeprefix("gw")))
