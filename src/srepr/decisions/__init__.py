"""From probabilities to decisions: an unknown class mix, sets of labels with a guarantee, doubt, costs."""
