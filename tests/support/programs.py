"""`python -m pipeline.<stage>`, `dvc` and `cl`, as forks of a process that has imported the libraries.

Importing these takes most of the time of a tiny run. Forks run the code of the folder that they start in.
`python -m tests.support.programs SOCKET` is that process.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.project import ROOT

LIBRARIES = """
dvc.cli.parser dvc.repo.experiments.run dvc.utils.hydra dvc_data.index hydra._internal.hydra celery.app
pygit2 dulwich.repo networkx click tabulate jinja2 rich.progress wcwidth matplotlib.pyplot pycocotools.coco
sklearn scipy.stats torch._dynamo torch.distributed.elastic.multiprocessing torchvision.models
torchvision.transforms.v2
"""
# Sends its arguments, environment and files to that process, and exits like the fork; else it is Python.
CLIENT = """#!{python} -IS
import json, os, socket, sys
if sys.argv[0].endswith("cl"):
    sys.argv[1:1] = ["-m", "cl"]
ours = sys.argv[1] == "-m" and sys.argv[2].partition(".")[0] in ("cl", "pipeline")
if not (ours or sys.argv[0].endswith("dvc")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect({address!r})
    given = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [given], [0, 1, 2])
    sys.exit(int(connection.recv(9) or 1))
"""


@functools.cache
def folder() -> str:
    """A folder with these programs, to be put first on PATH."""
    programs = Path(tempfile.mkdtemp())
    address = str(programs / "socket")
    for name in ("python", "dvc", "cl"):
        (programs / name).write_text(CLIENT.format(python=sys.executable, address=address))
        (programs / name).chmod(0o700)
    command = [sys.executable, "-m", __name__, address]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(shutil.rmtree, programs)
    atexit.register(process.communicate)  # closes its input; runs first
    assert process.stdout and process.stdout.readline(), "it did not start"
    return str(programs)


def _next_program(address: str) -> tuple[list[str], str, dict[str, str]]:
    """In a fork for each program that asks for one: its arguments, folder and environment, with its files."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            if os.fork() == 0:
                break
            connection.close()
        else:
            sys.exit()  # the tests have ended
    given, files, _, _ = socket.recv_fds(connection, 2**20, 3)
    program = os.fork()
    if program:
        _, status = os.waitpid(program, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return json.loads(given)


if __name__ == "__main__":
    for library in LIBRARIES.split():
        importlib.import_module(library)
    for module in [name for name in sys.modules if name.partition(".")[0] in ("cl", "pipeline", "tests")]:
        del sys.modules[module]
    gc.freeze()
    sys.argv, place, environment = _next_program(sys.argv[1])
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    if sys.argv[0].endswith("dvc"):
        sys.path.pop(0)
        runpy.run_path(str(ROOT / "pipeline/composition/dvc_program.py"), run_name="__main__")
    sys.path[0] = place
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
