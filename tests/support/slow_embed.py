"""`python -m tests.support.slow_embed`: listing and merging take longer than processes wait for a step."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

from cl.commands import embed_command
from cl.commands.jobs import embedding
from cl.console import launch
from tests.support import embed  # noqa: F401, it makes parts small

PATIENCE, LONGER = 3, 5  # seconds
connect = launch._connect


def connect_impatiently() -> Any:
    connected = connect()
    distributed_c10d._set_pg_timeout(timedelta(seconds=PATIENCE))
    return connected


def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*arguments: Any) -> Any:
        time.sleep(LONGER)
        return function(*arguments)

    return slow


launch._connect = connect_impatiently
embedding.EmbeddingJob.begin = slowly(embedding.EmbeddingJob.begin)  # type: ignore[method-assign]
embedding.merge = slowly(embedding.merge)

if __name__ == "__main__":
    embed_command()
