"""Checkpoints of other projects, read without executing anything: `srepr import` and `srepr train --from`."""
