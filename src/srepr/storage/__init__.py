"""Files that appear whole or not at all: JSON, CSV, tensors and cached arrays. Nothing here knows what is in them."""
