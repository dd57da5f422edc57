"""Methods that cannot be fitted: one says why, the other kills its process."""

import os
from dataclasses import dataclass

from combemb.methods.itq import ITQ


@dataclass(kw_only=True, eq=False, repr=False)
class Refusing(ITQ):
    """A method that no data suit."""

    def fit(self, *_, **__):
        """Say so."""
        raise ValueError("found nothing; needed everything")


@dataclass(kw_only=True, eq=False, repr=False)
class Dying(ITQ):
    """A method whose process is killed, as by a system without memory."""

    def fit(self, *_, **__):
        """End the process without a word."""
        os._exit(9)
