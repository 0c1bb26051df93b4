"""The stages of the pipeline, one Click entry point each: read params, validate, call `cl`, write results."""

import os
import sys
from importlib.util import find_spec

if find_spec("dvc") is None:
    sys.exit(
        f"{sys.executable} lacks the packages of this project: run `make .venv`, and then "
        "`export PATH=$PWD/.venv/bin:$PATH`"
    )
# Set before PyTorch is imported: every process would warn about an option that the training loop needs.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
