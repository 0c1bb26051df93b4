"""Worker processes write the shards."""

import multiprocessing
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from cl.runtime.forking import ctrl_c_delayed, exit_with_parent
from cl.shards.packing import pack
from cl.shards.tiles import images_begun
from cl.shards.work import Job, Work, save_note


def run(work: Work, report: Callable[..., None], workers: int) -> None:
    """Write the unfinished shards."""

    def count(job: Job, *, kept: bool = False) -> None:
        report(len(images_begun(work.listed(job))), kept=kept)

    unfinished = []
    for job in (job for split in work.orders for job in work.jobs(split)):
        if work.note(job).exists():
            count(job, kept=True)
        else:
            unfinished.append(job)
    if workers > 1:
        _run_in_workers(work, unfinished, workers, count)
        return
    for job in unfinished:
        _write_shard(work, job)
        count(job)


def _run_in_workers(work: Work, jobs: list[Job], workers: int, count: Callable[[Job], None]) -> None:
    fork = multiprocessing.get_context("fork")  # shares the list of images without a copy
    pool = ProcessPoolExecutor(workers, fork, initializer=_start_worker, initargs=(work,))
    try:
        with ctrl_c_delayed():
            pending = {pool.submit(_write_in_worker, job): job for job in jobs}
        for finished in futures.as_completed(pending):
            finished.result()
            count(pending[finished])
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
    exit_with_parent()


def _write_in_worker(job: Job) -> None:
    _write_shard(_work, job)


def _write_shard(work: Work, job: Job) -> None:
    """Write a shard and its note."""
    packed = pack(work.listed(job), work.storage, work.folder / f"{job.stem}.tar", work.levels, work.bands)
    save_note(work.note(job), replace(packed, shard=work.deliver(packed.shard)))
