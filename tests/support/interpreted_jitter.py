"""Runs the kernels of colour jitter on the CPU, in Triton's interpreter, which has to be chosen beforehand.

    TRITON_INTERPRET=1 python tests/support/interpreted_jitter.py FILE

FILE holds images and their colour parameters; it is overwritten with the changed images. Without FILE, the
difference that a run on a GPU would find is printed.
"""

import sys

import torch

from cl.data import augment_gpu
from cl.data.views import ColourParams

CPU = torch.device("cpu")

if __name__ == "__main__":
    augment_gpu.NATIVE.devices.add(CPU)
    if len(sys.argv) == 1:
        print(augment_gpu.NATIVE.difference(CPU))
    else:
        x, colour_params = torch.load(sys.argv[1])
        torch.save(augment_gpu._jitter(x, ColourParams(*colour_params.unbind(1)), []), sys.argv[1])
