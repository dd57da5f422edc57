"""A fitted model as bytes, so that workers need no access to the run folder."""

import hashlib
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from combemb import methods
from combemb.learning.codes import CodeMethod, require_codes
from combemb.learning.run_folder import BACKBONE, CONFIG, WEIGHTS, RunFolder

SHIPPED = (CONFIG, WEIGHTS, BACKBONE)


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """The files of a run that a model is loaded from, and a digest of its weights."""

    files: dict[str, bytes]
    digest: str

    @classmethod
    def of(cls, run: str | Path) -> "ModelFiles":
        """Read the files of a run folder; raise a ValueError if it cannot be loaded or has no codes."""
        require_codes(methods.load(run))
        folder = RunFolder(run).folder
        files = {name: (folder / name).read_bytes() for name in SHIPPED if (folder / name).exists()}
        digest = hashlib.sha256()
        for name in (WEIGHTS, BACKBONE):
            digest.update(files.get(name, b""))
        return cls(files, digest.hexdigest())

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelFiles) and other.digest == self.digest

    def load(self) -> CodeMethod:
        """Return the model, loaded once per process."""
        return _loaded(self)


@lru_cache(maxsize=2)
def _loaded(model: ModelFiles) -> CodeMethod:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in model.files.items():
            (Path(folder) / name).write_bytes(content)
        loaded = require_codes(methods.load(folder))
        if loaded.image_input_ is not None and BACKBONE in model.files:
            _ = loaded.image_input_.backbone  # reads the file while it is there
        return loaded
