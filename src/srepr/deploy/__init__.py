"""From a run folder to predictions and to files that can be deployed."""
