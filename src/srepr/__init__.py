"""Long-tailed classification with stochastic representations (SWA + SRepr)."""

__version__ = "0.1.0"
