"""`combemb embed` and `combemb encode`: write the vectors or the codes of items to a file."""

from pathlib import Path
from typing import Annotated

import typer

from combemb.cli.console import notes_shown, running, say, tell_broken
from combemb.cli.options import (
    Address,
    BlockItems,
    Data,
    DataOrUrl,
    Engine,
    Overwrite,
    Quiet,
    Run,
    check_writable,
)

OutputFile = Annotated[Path, typer.Option("--out", "-o", help="File to write: .npy, or .parquet with the ids.")]
COLUMNS = {"embed": "embedding", "encode": "code"}  # names in a Parquet file


def embed(run: Run, data: Data, file: OutputFile, overwrite: Overwrite = False, quiet: Quiet = False) -> None:
    """Map items to vectors: one float32 row per item.

    Example: `combemb embed runs/photos new-photos/ --out new-z.parquet`
    """
    _apply("embed", run, data, file, overwrite=overwrite, quiet=quiet)


def encode(
    run: Run,
    data: DataOrUrl,
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="File to write: .npy, or .parquet with the ids; a folder with --engine."),
    ],
    engine: Engine = None,
    address: Address = None,
    block_items: BlockItems = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Map items to codes: M small integers per item, 12 to 72 bits in total.

    With `--engine`, blocks of codes are written into a folder as soon as they are done, and the same command continues
    a run that was stopped. Codes do not depend on the engine.

    Example: `combemb encode runs/photos new-photos/ --out new-codes.parquet`, or
    `combemb encode runs/photos s3://bucket/photos --out s3://bucket/codes --engine ray`
    """
    if engine is None:
        with running(quiet):
            if address is not None or block_items is not None:
                raise ValueError("--address and --block-items need --engine")
        _apply("encode", run, Path(data), Path(out), overwrite=overwrite, quiet=quiet)
        return
    from combemb.cli.sharded import encode_blocks

    with running(quiet, "stopped; the same command continues"), notes_shown():
        options = {"engine": engine, "address": address, "block_items": block_items}
        encode_blocks(run, data, out, **options, overwrite=overwrite, progress=not quiet)


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
