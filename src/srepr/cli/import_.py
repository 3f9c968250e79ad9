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
    """Turn another project's checkpoint into a run folder for retrain, evaluate and train --from.

    Reads LDAM-DRW, RIDE, SADE, BCL, MiSLAS, classifier-balancing, torchvision, timm and Hugging Face ResNets; the file
    is read as data, nothing in it is executed.
    """

    EXAMPLE: ClassVar[str] = "srepr import ride.pth --source cifar100-lt --data-dir data --out runs/ride"

    checkpoint: Positional[Annotated[Path, arg(metavar="CHECKPOINT")]]
    """File written by torch.save or safetensors."""
    out: Path
    """Run folder."""
    source: str
    """Data that it was trained on: a name from `srepr data list`, or your own folder, .csv or .npz."""
    data: Annotated[Data, arg(name="")] = field(default_factory=Data)
    data_dir: Path | None = None
    """Folder with the files of the data set."""
    seed: int = 0
    """Random seed of the subsampling."""
    layout: str = "auto"
    """mislas, classifier-balancing, ride, bcl, huggingface, ldam or plain; auto detects it."""
    scale: float = 30.0
    """Scale of a cosine classifier; checkpoints do not contain it."""
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
