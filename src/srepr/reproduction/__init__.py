"""The tables of the paper: its numbers as data, its rows as work, and ours beside its own."""
