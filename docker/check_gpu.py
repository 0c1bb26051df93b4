"""Check that this environment has what GPUs and several nodes need, even on a machine without them.

`docker/check` runs this in the image. Each line says what is missing.
"""

import ctypes
import sys
from collections.abc import Iterator

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import libcuda_dirs
from triton.compiler import ASTSource
from triton.runtime.build import compile_module_from_src

MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "probe"};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&definition); }
"""


def missing() -> Iterator[str]:
    """What is missing, and what it is for."""
    for library in ("libibverbs.so.1", "libmlx5.so.1"):
        if not _loads(library):
            yield f"{library}, without which NCCL uses TCP instead of InfiniBand (package ibverbs-providers)"
    try:
        _compile()
    except Exception as error:
        yield f"something that Triton needs ({type(error).__name__}: {error})"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _compile() -> None:
    """Compile a kernel and a C module like those that start kernels; look for the library that these use."""
    triton.compile(
        ASTSource(_double, {"x": "*fp32", "size": "constexpr"}, {"size": 32}), GPUTarget("cuda", 90, 32)
    )
    compile_module_from_src(MODULE, "probe")
    if _loads("libcuda.so.1"):  # on a machine with a GPU
        libcuda_dirs()


@triton.jit
def _double(x, size: tl.constexpr):
    place = x + tl.arange(0, size)
    tl.store(place, 2 * tl.load(place))


if __name__ == "__main__":
    found = list(missing())
    for line in found:
        print(f"missing: {line}")
    sys.exit(bool(found))
