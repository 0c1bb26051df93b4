"""Ctrl-C in a terminal reaches a whole process group."""

import os
import signal
import sys
import time
from multiprocessing.connection import Pipe

from cl.runtime.forking import ctrl_c_delayed
from tests.support.processes import start_fork

INTERRUPTED, FINISHED = 130, 7


def _leader(sender) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reached_end = False
    try:
        with ctrl_c_delayed():
            worker = start_fork(_worker)
            os.killpg(os.getpid(), signal.SIGINT)
            reached_end = True
        sender.send("not interrupted")
    except KeyboardInterrupt:
        worker.join(60)
        sender.send((reached_end, worker.exitcode))
        sys.exit(INTERRUPTED)


def _worker() -> None:
    time.sleep(0.2)
    os._exit(FINISHED)


def test_ctrl_c_waits_for_the_end_of_the_block_and_spares_what_was_forked_in_it() -> None:
    receiver, sender = Pipe()
    leader = start_fork(_leader, sender)
    assert receiver.poll(60)
    assert receiver.recv() == (True, FINISHED)
    leader.join(60)
    assert leader.exitcode == INTERRUPTED
