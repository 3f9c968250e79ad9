"""Read other projects' checkpoints without executing them: `srepr import` and `srepr train --from`."""
