"""`combemb export`: the index in the formats of other tools."""

from pathlib import Path
from typing import Annotated, Any

import typer

from combemb.cli.console import running, say
from combemb.cli.options import Overwrite, Quiet, Run, check_writable

SUFFIXES = {"faiss": (".faiss", ".index"), "parquet": (".parquet",), "lance": (".lance",), "csv": (".csv",)}


def export(
    run: Run,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"The format: {', '.join(SUFFIXES)}.")],
    file: Annotated[Path, typer.Option("--out", "-o", help="File to write, or the folder of a Lance dataset.")],
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write the ids, paths, labels and codes of the index for other tools.

    FAISS knows entries by numbers only: number i is the row of `number` i in the table that is written beside its
    file, FILE.ids.csv, with id, path and label. Numbers count the entries of the index from 0, so they change when
    entries are removed: export again then. FAISS's similarities are the scores of `combemb search` if the M sub-vectors
    of a query, of D / M numbers each, have length 1 / sqrt(M). Those of `combemb embed` have it for CombEmb; for binary
    codes take the signs times 1 / sqrt(M). For OPQ, FAISS's L2 distances of what `combemb embed` writes are minus the
    scores. FAISS cannot read codes of LOPQ, whose words depend on a cell.

    CSV has a column for each part of a code. Parquet and Lance have it as a list, and the code words in the metadata,
    or a digest of them for LOPQ.

    Example: `combemb export runs/photos --to faiss --out photos.faiss`
    """
    from combemb.collection.exported import export as write
    from combemb.collection.exported import table_of_numbers
    from combemb.collection.indexed import Collection

    with running(quiet):
        if to not in SUFFIXES:
            raise ValueError(f"--to {to}: unknown format; choose one of {', '.join(SUFFIXES)}")
        check_writable(file, *SUFFIXES[to])
        for path in (file, table_of_numbers(file)) if to == "faiss" else (file,):
            if path.exists() and not overwrite:
                raise ValueError(f"{path} exists; use --overwrite to replace it")
        collection = Collection.open(run)
        chosen: Any = to
        written = write(collection, file, chosen)
        say(f"{len(collection):,} entries with codes of {collection.model.codebook.bits} bits written to {written[0]}")
        if to == "faiss":
            say(f"what FAISS's numbers mean: id, path and label of each `number` in {written[1]}")
