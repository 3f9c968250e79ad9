"""Checkpoints of other projects, read without executing anything: `srepr import`."""

from srepr.foreign.importing import import_checkpoint
from srepr.foreign.networks import Checkpoint, load_checkpoint, read_checkpoint

__all__ = ["Checkpoint", "import_checkpoint", "load_checkpoint", "read_checkpoint"]
