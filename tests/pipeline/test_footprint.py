"""How much memory processes have taken."""

import os
import subprocess
import sys

from pipeline.plan import peak_of_tree

MIB = 2**20
# Takes memory and frees it, shares some with a child that takes more, and waits.
PROGRAM = """
import mmap, os, sys, time
x = b"x" * (200 * 2**20)
del x
shared = mmap.mmap(-1, 100 * 2**20)
shared.write(b"x" * len(shared))
if os.fork() == 0:
    own = b"x" * (50 * 2**20)
    shared.seek(0)
    shared.write(own * 2)
    print("ready", flush=True)
time.sleep(60)
"""


def test_the_peak_of_a_tree_counts_what_was_freed_and_shared_memory_once() -> None:
    """The parent had 200 MiB before it shared 100; the child has 50 for itself."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        peak = peak_of_tree(process.pid)
        os.killpg(process.pid, 9)
    assert 250 * MIB < peak < 350 * MIB
    assert peak_of_tree(process.pid) == 0, "it has ended"
