"""The tables of the paper: its numbers, the experiments behind them, and our numbers beside them."""
