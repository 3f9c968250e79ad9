"""`srepr data`: list, download, verify and show data sets."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from srepr.cli.output import show, show_json
from srepr.errors import InputError, printable

LISTED = 20
"""Problems that `srepr data check` prints for people."""


@dataclass(frozen=True, kw_only=True)
class DataCommand:
    """List the data sets, download one (get), verify its files (check), or show its class sizes (show)."""

    EXAMPLE: ClassVar[str] = "srepr data show cifar100-lt --data-dir data"

    action: Positional[Literal["list", "get", "check", "show"]]
    """What to do."""
    source: Positional[Annotated[str, arg(metavar="SOURCE")]] = ""
    """Name from the list, or your own folder, .csv, .jsonl or .npz."""
    data_dir: Path | None = None
    """Folder with the files of the data set; get downloads into it."""
    imbalance: float | None = None
    """show: smallest class size over largest class size after subsampling."""
    seed: int = 0
    """show: random seed of the subsampling."""
    skip_bad_images: Annotated[bool, FlagCreatePairsOff] = False
    """show: skip images that cannot be decoded, and report how many."""
    url: str | None = None
    """get: address of a mirror of the official archive."""
    force: bool = False
    """get: download again, even if the files are there."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Do the action."""
        if self.action != "list" and not self.source:
            raise InputError(f"srepr data {self.action} needs a source. See: srepr data list")
        getattr(self, f"{self.action}_")()

    def list_(self) -> None:
        """A line for each source."""
        from rich.table import Table

        from srepr.data import catalogue

        if self.json:
            show_json([dataclasses.asdict(entry) for entry in catalogue()])
            return
        table = Table(box=None, pad_edge=False)
        for name in ("source", "classes", "what", "how to get it"):
            table.add_column(name, overflow="fold")
        for entry in catalogue():
            table.add_row(entry.name, str(entry.classes or "any"), entry.what, entry.how_to_get)
        show(table)

    def get_(self) -> None:
        """Download, verify and unpack."""
        from srepr.data.download import get
        from srepr.progress import Progress

        if self.data_dir is None:
            raise InputError("srepr data get needs `data_dir`, the folder to download into.")
        with Progress(f"get {self.source} (bytes)", total=0) as progress:

            def report(done: int, total: int | None) -> None:
                progress.total = total or 0
                progress.advance(done - progress.done)

            folder = get(self.source, self.data_dir, force=self.force, url=self.url, progress=report)
        if self.json:
            show_json({"source": self.source, "folder": folder})
        else:
            print(f"{self.source} is in {folder}")

    def check_(self) -> None:
        """Decode every image, compare every checksum."""
        from srepr.data.check import check

        problems = check(self.source, data_dir=self.data_dir)
        if self.json:
            show_json({"source": self.source, "problems": problems})
        if len(problems) == 1:
            raise InputError(problems[0])
        if problems:
            if not self.json:
                print(*map(printable, problems[:LISTED]), sep="\n")
            if len(problems) > LISTED and not self.json:
                print(f"and {len(problems) - LISTED:,} more: see --json")
            raise InputError(f"{self.source} has {len(problems):,} problems. Mend or remove what is listed above.")
        if not self.json:
            print(f"{self.source}: all files are complete")

    def show_(self) -> None:
        """The class histogram with sizes and imbalance."""
        from srepr.data import load
        from srepr.data.show import show as picture

        data = load(
            self.source,
            data_dir=self.data_dir,
            imbalance=self.imbalance,
            seed=self.seed,
            skip_bad_images=self.skip_bad_images,
        )
        if self.json:
            show_json({**data.describe(), "counts": data.counts.tolist()})
        else:
            show(picture(data))
