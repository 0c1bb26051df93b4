"""The devices on which contracts hold: the CPU, and with `make test-gpu` a GPU."""

import pytest

on_all_devices = pytest.mark.parametrize(
    "here", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)], indirect=True
)
