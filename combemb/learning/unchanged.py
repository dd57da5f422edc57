"""Whether a run still belongs to its data and settings, without reading any image."""

from combemb.data.given import Given
from combemb.data.items import ArrayItems
from combemb.learning.fitting import learned_part
from combemb.learning.interface import Interface
from combemb.learning.run_folder import RunFolder
from combemb.learning.saving import changed_settings

IMAGES_CHANGED = "the images have changed"


def changes_since(method: Interface, run: RunFolder, given: Given) -> list[str]:
    """Return what has changed since a run was started, as texts: settings, the path of the data, items, labels.

    Parameters
    ----------
    method : Interface
        A method with the settings of now; it need not be fitted.
    run : RunFolder
        A run, finished or not.
    given : Given
        The data of now.

    Returns
    -------
    list of str
        Empty if a fit would do the same again.
    """
    stored = run.config()
    run.require_unchanged_config()
    found = changed_settings(method, stored)
    path = None if given.path is None else str(given.path)
    if stored["path"] != path:
        return [*found, f"the data were {stored['path']}, now they are {path}"]
    return found + _changed_items(method, stored.get("data", {}), stored["classes"], given.training_part())


def _changed_items(method: Interface, before: dict[str, object], classes: list[object], given: Given) -> list[str]:
    part = learned_part(method, given)
    if part.images is not None and before.get("key") != part.images.key:
        return [IMAGES_CHANGED]
    if part.x is not None and {key: before.get(key) for key in ("shape", "x")} != ArrayItems(part.x).fingerprint():
        return ["the embeddings have changed"]
    is_renamed = not set(classes) <= set(given.labels.classes.tolist())  # those of broken images are not in the run
    return ["the labels have changed"] if is_renamed or before.get("labels") != given.labels.digest else []
