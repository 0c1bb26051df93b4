"""The devices on which contracts hold: the CPU, and a GPU where there is one."""

import pytest
import torch

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
on_all_devices = pytest.mark.parametrize("here", ["cpu", pytest.param("cuda:0", marks=NO_GPU)], indirect=True)
