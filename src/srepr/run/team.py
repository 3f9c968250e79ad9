"""Several processes make the features of one `srepr retrain`: the first asks for them, each makes its part.

The first process re-trains the heads as if it were alone. When it needs features, it tells the others which, and each
process writes the rows of its part of the examples into the same files. All end together: the first raises an error of
any of them, and the others end with its exit code.

They talk through the store of torch.distributed. A collective operation would give up after half an hour of waiting,
and does not notice on every kind of device that a process has ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from torch import Tensor

from srepr.config import Machine, Retrain
from srepr.errors import InputError, explained
from srepr.features import Array, NetworkFeatures, Source
from srepr.run.heartbeat import DEAD, heard_by_all
from srepr.storage.arrays import ArrayFolder

if TYPE_CHECKING:
    from subprocess import Popen

    from srepr.data.examples import Examples
    from srepr.run.classifiers import Frozen

LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS")
LOOK_EVERY = 0.05  # seconds
FAREWELL = 5.0  # seconds that the others leave the first to speak: a launcher ends all when one has failed


@dataclass
class Team:
    """The processes that make features together; by default there is one.

    >>> Team().leads
    True
    """

    rank: int = 0
    world_size: int = 1
    store: Any = None
    """Of torch.distributed."""
    started: Sequence[Popen[bytes]] = ()
    """The processes that this one has started."""
    parts: Mapping[str, Examples] = field(default_factory=dict)
    """The data under the names that the processes use."""
    asked: int = 0
    met: int = 0
    looked: float = 0.0

    @property
    def leads(self) -> bool:
        """Whether this is the process that trains the heads."""
        return self.rank == 0

    def folder(self, path: Path | None = None) -> ArrayFolder:
        """A folder, by default a temporary one, for arrays that all processes write."""
        return ArrayFolder(path, rank=self.rank, meet=None if self.store is None else self.meet)

    def ask(self, job: Mapping[str, Any]) -> None:
        """Tell the other processes what to make."""
        self.asked += 1
        self.store.set(f"job {self.asked}", json.dumps(job))

    def help(self, frozen: Frozen) -> NoReturn:
        """Make what the first process asks for, until it ends."""
        while True:
            self.asked += 1
            name = f"job {self.asked}"
            self.wait(lambda name=name: self.store.check([name]))  # type: ignore[misc]
            job = json.loads(self.store.get(name))
            examples, settings = self.parts[job["part"]], Retrain(**job["settings"])
            features = frozen.features(
                examples,
                job["representation"],
                settings,
                augment=job["augment"],
                calibration=self.parts.get(job["calibration"]),
            )
            features.store = self.folder(Path(job["folder"]))
            features.make([Source(view, draw and tuple(draw)) for view, draw in job["sources"]], job["view"])

    def meet(self) -> None:
        """Return when all processes have called this."""
        self.met += 1
        name = f"meeting {self.met}"
        self.store.add(name, 1)
        self.wait(lambda: bool(self.store.add(name, 0) == self.world_size))

    def look(self) -> None:
        """In the first process, raise the error of another one. In another one, end if the first has ended."""
        if self.store is None or time.monotonic() < self.looked + LOOK_EVERY:
            return
        self.looked = time.monotonic()
        if not self.leads:
            if self.store.check(["end"]):
                sys.exit(int(self.store.get("end")))
        elif self.store.check(["failure"]):
            failure = json.loads(self.store.get("failure"))
            raise (RuntimeError if failure["bug"] else InputError)(failure["words"])
        elif any(process.poll() for process in self.started):
            raise InputError(DEAD)

    def wait(self, happened: Callable[[], bool]) -> None:
        """Wait, but not for a process that has ended."""
        while not happened():
            self.look()
            time.sleep(LOOK_EVERY)


class TeamFeatures(NetworkFeatures):
    """Features that all processes of a team make, each those of its part of the examples."""

    def __init__(
        self, team: Team, examples: Examples, augment: bool, calibrated_on: Examples | None, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.team, self.examples, self.augment = team, examples, augment
        self.calibrated_on = calibrated_on

    def make(self, missing: Sequence[Source], view: int) -> None:
        """Run the missing networks over one view of the data; the others are told to do the same."""
        if self.team.leads and self.team.store is not None:
            assert isinstance(self.store, ArrayFolder)
            names = {id(part): name for name, part in self.team.parts.items()}
            self.team.ask(
                {
                    "part": names[id(self.examples)],
                    "calibration": names[id(self.calibrated_on)] if self.calibrated_on is not None else None,
                    "representation": self.representation,
                    "settings": asdict(self.settings),
                    "augment": self.augment,
                    "folder": str(self.store.folder.resolve()),
                    "sources": [(source.view, source.draw) for source in missing],
                    "view": view,
                }
            )
        super().make(missing, view)

    def stored(self, features: Tensor) -> Array:
        """Features in the type they are kept in, unless another process has failed."""
        self.team.look()
        return super().stored(features)


@contextmanager
def open_team(devices: int = 1) -> Iterator[Team]:
    """The processes that torchrun or SLURM have started, or else as many as there are devices.

    When the block ends in the first process, the others end with the same exit code, and do not leave it otherwise.

    >>> with open_team() as team:
    ...     team.world_size
    1
    """
    machine = Machine(devices=devices)
    if machine.devices == 1 and not any(name in os.environ for name in LAUNCHERS):
        yield Team()
        return
    from srepr.run.devices import as_launched, launch, open_fabric  # Lightning takes a second to import

    machine = as_launched(machine)
    if machine.devices * machine.num_nodes == 1:
        yield Team()
        return
    fabric = open_fabric(machine)
    started = launch(fabric)
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    common: Any = _get_default_store()
    store = PrefixStore("srepr/retrain", common.clone())
    team = Team(fabric.global_rank, fabric.world_size, store, started)
    with heard_by_all(team.rank, team.world_size, started), leading(team) if team.leads else following(team):
        yield team


@contextmanager
def leading(team: Team) -> Iterator[None]:
    """Tell the other processes how the block ends."""
    code = 1
    try:
        yield
        code = 0
    except (InputError, OSError):
        code = 2
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    except dist.DistError:
        code = 2
        raise InputError(DEAD) from None
    finally:
        with suppress(dist.DistError):
            team.store.set("end", str(code))
            until = time.monotonic() + FAREWELL
            while code == 0 and team.store.add("left", 0) < team.world_size - 1 and time.monotonic() < until:
                time.sleep(LOOK_EVERY)


@contextmanager
def following(team: Team) -> Iterator[None]:
    """Tell the first process what went wrong in the block; end with its exit code, and not before it."""
    try:
        with telling(team):
            yield
    except dist.DistError:  # the store has ended with the first process
        sys.exit(2)
    except SystemExit as end:
        with suppress(dist.DistError):
            team.store.add("left", 1)
            until = time.monotonic() + FAREWELL
            while end.code and time.monotonic() < until:
                team.store.check(["end"])
                time.sleep(LOOK_EVERY)
        raise


@contextmanager
def telling(team: Team) -> Iterator[None]:
    """Leave an error to the first process, and wait for its end."""
    try:
        yield
    except (SystemExit, dist.DistError):
        raise
    except BaseException as error:
        bug, words = False, str(error)
        if isinstance(error, OSError):
            words = explained(error)
        elif isinstance(error, KeyboardInterrupt):
            words = DEAD
        elif not isinstance(error, InputError):
            bug, words = True, f"{type(error).__name__}: {error}"
        team.store.set("failure", json.dumps({"bug": bug, "words": words}))
        team.wait(lambda: False)
