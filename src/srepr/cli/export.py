"""`srepr export`: a trained model as a file to deploy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Export a classifier for deployment, with class names, normalisation and a model card."""

    EXAMPLE: ClassVar[str] = "srepr export runs/birds --format onnx -o birds.onnx"

    model: Positional[Annotated[Path, arg(metavar="RUN|MODEL.safetensors")]]
    """Run folder, or a model exported as safetensors."""
    format: Literal["safetensors", "torch", "onnx"]
    """safetensors (weights and a JSON file), torch (torch.export, .pt2) or onnx."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """Output file; a missing suffix is added."""
    head: str | None = None
    """Head of the run; default: auto, else srepr, else the newest on the averaged network. swa and sgd are the
    networks of stage 1."""
    prior: str | None = None
    """Class prior of the deployment: uniform, train, a file, or a list such as 0.7,0.2,0.1."""
    opset: int | None = None
    """onnx: operator set version; default: torch's."""

    def run(self) -> None:
        """Export, then print the files."""
        from srepr.deploy.export import export

        for file in export(self.model, self.out, self.format, head=self.head, prior=self.prior, opset=self.opset):
            print(file)
