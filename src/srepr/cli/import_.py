"""`srepr import`: another project's checkpoint as a run folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from srepr.cli.output import show_results
from srepr.config import Data


@dataclass(frozen=True, kw_only=True)
class ImportCommand:
    """Another project's checkpoint as a run folder, for retrain, evaluate and train --from.

    Reads LDAM-DRW, RIDE, SADE, BCL, MiSLAS, classifier-balancing, torchvision, timm and Hugging Face ResNets; the file
    is read as data, nothing in it is executed.
    """

    EXAMPLE: ClassVar[str] = "srepr import ride.pth --source cifar100-lt --data-dir data --out runs/ride"

    checkpoint: Positional[Annotated[Path, arg(metavar="CHECKPOINT")]]
    """A file of torch.save or safetensors."""
    out: Path
    """The run folder."""
    source: str
    """The data that it was trained on: a name from `srepr data list`, or a folder, .csv or .npz of yours."""
    data: Annotated[Data, arg(name="")] = field(default_factory=Data)
    data_dir: Path | None = None
    """Where the data set's files are."""
    seed: int = 0
    """Which examples are drawn."""
    layout: str = "auto"
    """mislas, classifier-balancing, ride, bcl, huggingface, ldam or plain, where it is not found by itself."""
    scale: float = 30.0
    """Of a cosine classifier: its files do not tell."""
    workers: int = 2
    """Processes that decode image files."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Import, then print the table."""
        from srepr.importing.folder import import_checkpoint

        results = import_checkpoint(
            self.checkpoint,
            self.out,
            self.source,
            data=self.data,
            data_dir=self.data_dir,
            seed=self.seed,
            layout=self.layout,
            scale=self.scale,
            workers=self.workers,
            quiet=self.json,
        )
        show_results(results, f"{self.checkpoint.name}, {self.source}", as_json=self.json)
