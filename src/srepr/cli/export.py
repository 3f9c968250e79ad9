"""`srepr export`: a trained model as a file to deploy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """A file to deploy, with class names, normalisation and a model card in it, and the card beside it."""

    EXAMPLE: ClassVar[str] = "srepr export runs/birds --format onnx -o birds.onnx"

    model: Positional[Annotated[Path, arg(metavar="RUN|MODEL.safetensors")]]
    """A run folder, or a model that was exported as safetensors."""
    format: Literal["safetensors", "torch", "onnx"]
    """safetensors (weights, and a JSON file beside them), torch (torch.export, .pt2) or onnx."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The file; its suffix is added where it is missing."""
    head: str | None = None
    """Which head of the run (srepr when not given, or else the newest); swa and sgd are the networks of stage 1."""
    prior: str | None = None
    """How often the classes come where the model is used: uniform, train, a file, or a list 0.7,0.2,0.1."""
    opset: int | None = None
    """onnx: the version of its operators (torch's choice when not given)."""

    def run(self) -> None:
        """Export, and say what was written."""
        from srepr.deploy.export import export

        for file in export(self.model, self.out, self.format, head=self.head, prior=self.prior, opset=self.opset):
            print(file)
