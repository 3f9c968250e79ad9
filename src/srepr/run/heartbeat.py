"""A host that is cut off closes no connection: the processes of a run tell each other that they are there.

Each process counts up a number in the store of torch.distributed every few seconds. If that of another one stands
still for longer than `PATIENCE`, or the store does not answer, the run is over for this process: a collective
operation would wait for half an hour. It is over as well if a process that this one has started fails.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from srepr.errors import tell

if TYPE_CHECKING:
    from subprocess import Popen

EVERY, PATIENCE = 2.0, 30.0  # seconds
DONE = "done"
LOST = "another process of this run does not answer; its host may be cut off. The same command continues the run."
DEAD = "a process of this run died; it may have been killed. The same command continues the run."


@contextmanager
def heard_by_all(rank: int, processes: int, started: Sequence[Popen[bytes]] = ()) -> Iterator[None]:
    """Within the block, end this process with exit code 2 and one line if another one does not answer any more.

    The same goes for a process that this one has `started`, and that has failed without the block noticing it.

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
    threading.Thread(target=watch, args=(rank, heard, started, ended), daemon=True).start()
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


def watch(
    rank: int, heard: dict[int, tuple[str, float]], started: Sequence[Popen[bytes]], ended: threading.Event
) -> None:
    """End the process if nothing was heard of another one for too long, or one that it has started has failed."""
    failed_before = False
    while not ended.wait(EVERY):
        failed = any(process.poll() for process in started)
        lost = any(time.monotonic() - last > PATIENCE for _, last in heard.values())
        if lost or (failed and failed_before):  # the block had time to say it better
            if int(os.environ.get("LOCAL_RANK", rank)) == 0:
                tell(LOST if lost else DEAD)
            os._exit(2)
        failed_before = failed
