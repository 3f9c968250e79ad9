"""Long-tailed classification with stochastic representations (SWA + SRepr).

torch is imported by the first use of a name that needs it, not by `import srepr`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from srepr import analysis, balance, data, dirichlet, metrics, models, objective
    from srepr.errors import InputError
    from srepr.fitting import collect, fit
    from srepr.metrics import evaluate
    from srepr.posterior import Posterior
    from srepr.retraining import retrain

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "Posterior",
    "analysis",
    "balance",
    "collect",
    "data",
    "dirichlet",
    "evaluate",
    "fit",
    "metrics",
    "models",
    "objective",
    "retrain",
]

_HOMES = {
    "InputError": "errors",
    "Posterior": "posterior",
    "collect": "fitting",
    "evaluate": "metrics",
    "fit": "fitting",
    "retrain": "retraining",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"srepr.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"srepr.{name}")
    raise AttributeError(f"module 'srepr' has no attribute {name!r}")
