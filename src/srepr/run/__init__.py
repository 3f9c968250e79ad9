"""Everything that knows a run folder: train, retrain, evaluate and analyze."""
