"""A team writes the shards: each process its own share, then shards that no other process has begun."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.connection import wait

from cl.runtime.forking import ctrl_c_delayed
from cl.shards.packing import pack
from cl.shards.team import Team
from cl.shards.tiles import images_begun
from cl.shards.work import Job, Work, save_note

EVERY = 0.5  # seconds between checks of other processes' progress


def run(work: Work, report: Callable[..., None], team: Team) -> None:
    """Write the unfinished shards; rank 0 also waits for those of other ranks."""
    waiting = [job for split in work.orders for job in work.jobs(split)]

    def note_progress(*, kept: bool = False) -> None:
        """Report shards finished since the last call, by any process."""
        nonlocal waiting
        finished = {path.stem for path in work.notes.glob("*.note")}
        for job in (job for job in waiting if job.stem in finished):
            report(len(images_begun(work.listed(job))), kept=kept)
        waiting = [job for job in waiting if job.stem not in finished]

    note_progress(kept=True)
    shares = [waiting[(team.rank + number) % team.ranks :: team.ranks] for number in range(team.ranks)]
    # Of other ranks' shares the last first: these may not have begun.
    jobs = [*shares[0], *(job for share in shares[1:] for job in reversed(share))]
    if team.workers == 1:
        for job in jobs:
            _write_shard(work, job)
            note_progress()
    else:
        _run_in_workers(work, jobs, team.workers, note_progress)
    while team.rank == 0 and waiting:
        time.sleep(EVERY)
        note_progress()
    team.gather(None)  # rank 0 removes the notes only when no rank needs them


def _run_in_workers(work: Work, jobs: list[Job], workers: int, note_progress: Callable[[], None]) -> None:
    fork = multiprocessing.get_context("fork")  # shares the list of images without a copy
    pool = ProcessPoolExecutor(workers, fork, initializer=_start_worker, initargs=(work,))
    try:
        with ctrl_c_delayed():
            pending = {pool.submit(_write_in_worker, job) for job in jobs}
        while pending:
            done, pending = futures.wait(pending, EVERY, futures.FIRST_EXCEPTION)
            for finished in done:
                finished.result()
            note_progress()
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker was killed, perhaps because memory ran out; run again to continue from here"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_work: Work  # in a worker process


def _start_worker(work: Work) -> None:
    """Keep the work, and exit if the parent dies."""
    global _work
    _work = work
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _write_in_worker(job: Job) -> None:
    _write_shard(_work, job)


def _write_shard(work: Work, job: Job) -> None:
    """Write a shard and its note, unless another process has claimed it."""
    if work.claim(job):
        packed = pack(work.listed(job), work.storage, work.folder / f"{job.stem}.tar", work.levels)
        save_note(work.note(job), replace(packed, shard=work.deliver(packed.shard)))
