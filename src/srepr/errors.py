"""The one exception for input that a person can mend; the command line turns it into one line and exit code 2."""


class InputError(ValueError):
    """Something about the input is wrong: the message names the thing and says what to do next.

    >>> raise InputError("no recipe is called 'cifar-lt'. Known: cifar10-lt, cifar100-lt")
    Traceback (most recent call last):
    srepr.errors.InputError: no recipe is called 'cifar-lt'. Known: cifar10-lt, cifar100-lt
    """
