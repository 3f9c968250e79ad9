"""A host that is cut off closes no connection: the processes of a run tell each other that they are there.

Each process counts up a number in the store of torch.distributed every few seconds. If that of another one stands
still for longer than `PATIENCE`, or the store does not answer, the run is over for this process: a collective
operation would wait for half an hour.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

EVERY, PATIENCE = 2.0, 30.0  # seconds
DONE = "done"
LOST = (
    "srepr: another process of this run does not answer; its host may be cut off. The same command resumes from the"
    " last checkpoint."
)


@contextmanager
def heard_by_all(rank: int, processes: int) -> Iterator[None]:
    """Within the block, end this process with exit code 2 and one line if another one does not answer any more.

    >>> with heard_by_all(rank=0, processes=1):
    ...     pass
    """
    if processes == 1 or not dist.is_initialized():
        yield
        return
    from torch.distributed.distributed_c10d import _get_default_store

    store: Any = _get_default_store()
    store = store.clone()  # a connection of its own: the other one may be waiting
    heard = {other: ("", time.monotonic()) for other in range(processes) if other != rank}
    ended = threading.Event()
    talking = threading.Thread(target=talk, args=(store, rank, heard, ended), daemon=True)
    talking.start()
    # A question to a host that is cut off may never return, so another thread looks at the clock.
    threading.Thread(target=watch, args=(rank, heard, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        talking.join(EVERY)


def talk(store: Any, rank: int, heard: dict[int, tuple[str, float]], ended: threading.Event) -> None:
    """Count up, and note when the numbers of the others change."""
    for count in itertools.count():
        if ended.wait(EVERY):
            break
        with suppress(RuntimeError):  # the store is gone: what was heard last gets older
            store.set(f"srepr/{rank}", str(count))
            for other, (before, _) in heard.items():
                number = store.get(f"srepr/{other}").decode()
                if number != before or number == DONE:
                    heard[other] = number, time.monotonic()
    with suppress(RuntimeError):
        store.set(f"srepr/{rank}", DONE)


def watch(rank: int, heard: dict[int, tuple[str, float]], ended: threading.Event) -> None:
    """End the process if nothing was heard of another one for too long."""
    while not ended.wait(EVERY):
        if any(time.monotonic() - last > PATIENCE for _, last in heard.values()):
            if int(os.environ.get("LOCAL_RANK", rank)) == 0:
                print(LOST, file=sys.stderr, flush=True)
            os._exit(2)
