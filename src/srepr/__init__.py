"""Long-tailed classification with stochastic representations (SWA + SRepr).

`import srepr` does not import torch; the first use of a name that needs it does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from srepr import analysis, balance, data, dirichlet, metrics, models, objective
    from srepr.anymodel.fit import collect, fit
    from srepr.anymodel.retrain import retrain
    from srepr.errors import InputError
    from srepr.metrics import evaluate
    from srepr.posterior import Posterior
    from srepr.run.load import load

__version__ = "0.2.0"

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
    "load",
    "metrics",
    "models",
    "objective",
    "retrain",
]

_HOMES = {
    "InputError": "errors",
    "Posterior": "posterior",
    "collect": "anymodel.fit",
    "evaluate": "metrics",
    "fit": "anymodel.fit",
    "load": "run.load",
    "retrain": "anymodel.retrain",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"srepr.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"srepr.{name}")
    raise AttributeError(f"module 'srepr' has no attribute {name!r}")
