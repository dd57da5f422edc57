"""Errors that say what was found, what is needed and what to do; and warnings about results."""


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


class Note(UserWarning):
    """A warning that a result may not be what the user wanted."""


class UnknownData(ValueError):
    """The data that a run was fitted on are unknown or no longer exist."""
