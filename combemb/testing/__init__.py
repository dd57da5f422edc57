"""The contract of all methods, including those of other packages.

`check_method(MyMethod)` raises `BrokenPromise` unless the class does what every method must do. From the command line:
`python -m combemb.testing package.module:Class`.
"""

from collections.abc import Iterable
from typing import Any

from combemb.learning.method import Method
from combemb.testing import discovering, given, images, kinds, outcome, run_folders, the_class
from combemb.testing.promise import BrokenPromise, Promise, promises_in
from combemb.testing.trial import Trial

__all__ = ["BrokenPromise", "Promise", "Trial", "check_method", "promises"]

TOPICS = (the_class, outcome, given, run_folders, kinds, discovering, images)
PROMISES = [promise for topic in TOPICS for promise in promises_in(topic)]


def promises(cls: type[Any] = Method) -> list[Promise]:
    """Return the promises that a method class must keep, by default those of every method.

    Examples
    --------
    >>> next(promise.text for promise in promises() if promise.name == "seed_decides")
    'the seed determines the outcome'
    """
    return [promise for promise in PROMISES if issubclass(cls, promise.only_for)]


def check_method(cls: type[Method], only: Iterable[str] = (), settings: dict[str, Any] | None = None) -> None:
    """Check that a method class keeps every promise; this takes some seconds.

    Parameters
    ----------
    cls : type
        A subclass of `combemb.methods.Method`.
    only : iterable of str
        Names of promises; only these are checked.
    settings : dict, optional
        Settings for the trial, if its small values do not suit, such as `{"bits": 16}`. A class may have them as
        `trial_settings`.

    Raises
    ------
    BrokenPromise
        At the first promise that is broken; the message says which one, and how.

    Examples
    --------
    >>> from combemb.methods.itq import ITQ
    >>> check_method(ITQ, only=["constructor_stores", "seed_decides"])
    """
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"{cls!r} is not a method class; give a subclass of combemb.methods.Method")
    chosen, known = set(only), {promise.name for promise in PROMISES}
    if unknown := chosen - known:
        raise ValueError(f"there is no promise {', '.join(sorted(unknown))}; choose from {', '.join(sorted(known))}")
    with Trial(cls, settings) as trial:
        for promise in promises(cls):
            if not chosen or promise.name in chosen:
                promise.verify(trial)
