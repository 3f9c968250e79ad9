"""Files that appear whole or not at all: text, JSON, CSV, tensors and cached arrays."""
