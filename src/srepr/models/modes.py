"""Running a model in eval mode and giving it back as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside the block; afterwards each has its own flag again, also after an error.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
    >>> with eval_mode(model):
    ...     model[0].training
    False
    >>> model.training, model[0].training, model[1].training
    (True, True, False)
    """
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
