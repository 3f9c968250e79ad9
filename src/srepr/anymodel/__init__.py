"""The method around your own network, without a run folder: `srepr.fit`, `srepr.collect` and `srepr.retrain`."""
