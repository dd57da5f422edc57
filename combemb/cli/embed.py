"""`combemb embed` and `combemb encode`: write the vectors or the codes of items to a file."""

from pathlib import Path
from typing import Annotated

import typer

from combemb.cli.console import running, say, tell_broken
from combemb.cli.options import Data, Overwrite, Quiet, Run, check_writable

OutputFile = Annotated[Path, typer.Option("--out", "-o", help="File to write: .npy, or .parquet with the ids.")]
COLUMNS = {"embed": "embedding", "encode": "code"}  # names in a Parquet file


def embed(run: Run, data: Data, file: OutputFile, overwrite: Overwrite = False, quiet: Quiet = False) -> None:
    """Map items to vectors: one float32 row per item.

    Example: `combemb embed runs/photos new-photos/ --out new-z.parquet`
    """
    _apply("embed", run, data, file, overwrite=overwrite, quiet=quiet)


def encode(run: Run, data: Data, file: OutputFile, overwrite: Overwrite = False, quiet: Quiet = False) -> None:
    """Map items to codes: M small integers per item, 12 to 72 bits in total.

    Example: `combemb encode runs/photos new-photos/ --out new-codes.parquet`
    """
    _apply("encode", run, data, file, overwrite=overwrite, quiet=quiet)


def _apply(verb: str, run: Path, data: Path, file: Path, *, overwrite: bool, quiet: bool) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from combemb import methods
    from combemb.learning.codes import require_codes
    from combemb.system.files import write_atomically

    def write(path: Path) -> None:
        if file.suffix.lower() == ".npy":
            with path.open("wb") as opened:
                np.save(opened, rows)
        else:
            lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
            ids = np.arange(len(rows)) if given.ids is None else given.ids
            pq.write_table(pa.table({"id": pa.array(ids), COLUMNS[verb]: lists}), path)

    with running(quiet):
        check_writable(file, ".npy", ".parquet")
        if file.exists() and not overwrite:
            raise ValueError(f"{file} exists; use --overwrite to replace it")
        model = methods.load(run)
        given = model.read(data, progress=not quiet)
        make = model.embed if verb == "embed" else require_codes(model).encode
        rows = make(given, progress=not quiet).numpy()
        write_atomically(file, write)
        tell_broken(given.broken, str(file))
        say(f"{len(rows)} rows of {rows.shape[1]} {rows.dtype} written to {file}")
