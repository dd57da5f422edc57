"""The command line: the verbs of the package on files and run folders."""

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from combemb import methods
from combemb.cli.options import parse_settings, read_label_file
from combemb.learning import run_folder as runs
from combemb.learning.loop import Diverged
from combemb.system import processes
from combemb.system.errors import Note
from combemb.system.files import write_atomically

app = typer.Typer(
    help="One representation for labelled classes and the ones nobody has named: fit, embed, encode, search, discover.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
out, err = Console(highlight=False), Console(stderr=True, highlight=False)

INPUT = (
    "Images: a folder with one sub-folder per class, or a manifest (.csv or .parquet with path, label). "
    "Or embeddings: .npy, .npz (x, labels, ids) or .parquet (embedding, label, id)."
)
Input = Annotated[Path, typer.Argument(metavar="DATA", help=INPUT)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a fitted run.")]
OutputFile = Annotated[Path, typer.Option("--out", "-o", help="File to write: .npy, or .parquet with the ids.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")]
COLUMNS = {"embed": "embedding", "encode": "code"}  # of a Parquet file
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and unreadable images.")]


@app.command()
def fit(
    data: Input,
    folder: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder that the run is written to.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Labels, if they are not in the data: .npy, or text with one label per line. "
            "Empty or -1 means unlabelled."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="One of the methods that `combemb settings` lists.")] = "combemb",
    bits: Annotated[int | None, typer.Option(help="Length of a code; 12 to 72 are usual.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other setting, see `combemb settings METHOD`; repeatable."
        ),
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    quiet: Quiet = False,
) -> None:
    """Learn from images or embeddings of which a part is labelled, and write a run folder.

    Example: `combemb fit photos/ --out runs/photos --bits 48`
    """
    with errors_shown("stopped; what the last checkpoint holds can be continued with --resume"):
        quiet = quiet or not processes.is_first()
        cls = methods.get(method)
        chosen = parse_settings(cls, settings or [])
        chosen |= {name: value for name, value in (("bits", bits), ("seed", seed)) if value is not None}
        model = cls(**chosen)
        names = read_label_file(labels) if labels else None
        model.fit(data, names, folder=folder, overwrite=overwrite, resume=resume, progress=not quiet)
        if not quiet:
            for line in model.summary():
                say(line)
            say(f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


@app.command()
def embed(run: RunFolder, data: Input, file: OutputFile, overwrite: Overwrite = False, quiet: Quiet = False) -> None:
    """Map items to vectors of a fitted run: one float32 row per item.

    Example: `combemb embed runs/photos new-photos/ --out new-z.parquet`
    """
    with errors_shown():
        _apply("embed", run, data, file, overwrite=overwrite, quiet=quiet)


@app.command()
def encode(run: RunFolder, data: Input, file: OutputFile, overwrite: Overwrite = False, quiet: Quiet = False) -> None:
    """Map items to codes of a fitted run: M small integers per item, 12 to 72 bits together.

    Example: `combemb encode runs/photos new-photos/ --out new-codes.parquet`
    """
    with errors_shown():
        _apply("encode", run, data, file, overwrite=overwrite, quiet=quiet)


@app.command()
def index(
    run: RunFolder,
    images: Annotated[
        Path | None, typer.Option(help="Images to index: a folder, a manifest, or .npy (N, H, W, 3).")
    ] = None,
    embeddings: Annotated[Path | None, typer.Option(help="Or embeddings: .npy, .npz or .parquet.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels, if they are not in the data; as for `fit`.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add to the index that is there.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make what the run was fitted on searchable, or other images or embeddings; the index goes into the run folder.

    Of data with a part to test on, the part that was fitted on; of `--images` all of them.

    Example: `combemb index runs/photos`, and later `combemb index runs/photos --images new-photos/ --add`
    """
    from combemb.cli import search as search_commands  # noqa: PLC0415 - FAISS would cost every start of a fit a part of a second
    from combemb.collection.indexed import Collection  # noqa: PLC0415

    with errors_shown("stopped; the index is as it was"):
        source = search_commands.chosen_source(images, embeddings)
        names = read_label_file(labels) if labels else None
        make = search_commands.add_to_index if add else Collection.build
        collection = make(run, source, labels=names, overwrite=overwrite, progress=not quiet)
        tell_broken(collection.broken, "which are not in the index")
        if not quiet:
            for line in search_commands.summary(collection):
                say(line)


@app.command()
def search(
    run: RunFolder,
    query: Annotated[
        Path,
        typer.Argument(
            metavar="QUERY", help="An image; or a folder, a manifest or an array file of several; or embeddings."
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Entries to find for each query.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of queries with their hits.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the pictures of the queries and their hits; replaces it.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Find what is nearest to a query among the entries that `combemb index` made searchable.

    The score says how near the query is to an entry's code, larger is nearer: the similarity of the query's part and
    the entry's word, summed over the sets of words. For CombEmb these are cosines, so that it is at most the number of
    sets; for binary codes it is bits - 2 x (bits that differ). Equal codes score the same and come in order of adding.

    Example: `combemb search runs/photos bird.jpg -k 20 --html hits.html`
    """
    from combemb.cli import search as search_commands  # noqa: PLC0415
    from combemb.collection.indexed import Collection  # noqa: PLC0415
    from combemb.explorer.contact_sheet import write_contact_sheet  # noqa: PLC0415

    with errors_shown():
        if html:
            search_commands.check_page(html)
        collection = Collection.open(run)
        results = collection.search(query, k, progress=not quiet)
        tell_broken(collection.broken, "which find nothing")
        if html:  # first, because what reads the lines below may stop doing so
            bits = collection.model.codebook.bits
            about = f"{len(collection):,} entries with codes of {bits} bits. A larger score is nearer."
            write_contact_sheet(html, results, f"Search in {run}", about, progress=not quiet)
        if as_json:
            typer.echo(search_commands.as_json(results))
        elif not quiet:
            search_commands.print_results(results, out)
            if html:
                say(f"written to {html}")


@app.command()
def discover(
    run: RunFolder,
    images: Annotated[
        Path | None, typer.Option(help="Other images than the run was fitted on; as for `index`.")
    ] = None,
    embeddings: Annotated[Path | None, typer.Option(help="Or other embeddings: .npy, .npz or .parquet.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels, if they are not in the data; as for `fit`.")] = None,
    n_novel: Annotated[int | None, typer.Option(help="How many novel classes there are, if you know it.")] = None,
    count_by: Annotated[str, typer.Option(help="Otherwise, how to count them: sizes, codes, gcd or dtc.")] = "sizes",
    to_folders: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Make a folder of links to its images for each cluster.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copies in these folders instead of links.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the page and the map, or not.")] = True,
    quiet: Quiet = False,
) -> None:
    """Find which items are of no labelled class, how many novel classes there are, and which item is in which.

    Writes discovery.parquet and discovery.csv (path, cluster, is_novel, confidence), a page to look at
    (discovery.html) and a map (discovery-map.png) into the run folder; what an earlier call wrote is replaced.

    Example: `combemb discover runs/photos --to-folders sorted/`
    """
    from combemb.cli import discover as shown  # noqa: PLC0415
    from combemb.cli import search as search_commands  # noqa: PLC0415
    from combemb.collection import discovered as discover_command  # noqa: PLC0415

    with errors_shown():
        source = search_commands.chosen_source(images, embeddings)
        if to_folders:
            discover_command.check_empty(to_folders)
        elif copy:
            raise ValueError("--copy says how --to-folders places images; give that too")
        names = read_label_file(labels) if labels else None
        with notes_shown(quiet):
            result = discover_command.discover_in(
                run,
                source,
                labels=names,
                n_novel=n_novel,
                count_by=count_by,
                to_folders=to_folders,
                progress=not quiet,
            )
        discover_command.write_tables(result)
        shown.remove_pictures(run)
        tell_broken(result.broken, "which are in no cluster")
        written = [runs.TABLE, runs.TEXT]
        if page:
            shown.write_pictures(result, progress=not quiet)
            written += [runs.PAGE, runs.MAP]
        if not quiet:
            shown.print_summary(result, out)
            say(f"written to {run}: {', '.join(written)}")
        if to_folders:
            n = discover_command.write_folders(result, to_folders, copy=copy, progress=not quiet)
            if not quiet:
                how = "copied" if copy else "linked"
                say(f"{n:,} images {how} into {to_folders}")


@app.command(name="settings")
def show_settings(
    method: Annotated[str | None, typer.Argument(help="A method; left out, all of them are listed.")] = None,
) -> None:
    """List the methods, or the settings of one with their defaults."""
    with errors_shown():
        if method is None:
            for name in methods.names():
                out.print(f"{name:10} {methods.get(name).paper}")
            return
        table = Table("setting", "default", "what it is", box=None, pad_edge=False)
        for field in dataclasses.fields(methods.get(method)):
            table.add_row(field.name, str(field.default), field.metadata["about"])
        out.print(table)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run.")] = Path("runs/digits"),
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Learn handwritten digits of which seven are half labelled and three never, and search for all ten."""
    from combemb.cli import demo as digits_demo  # noqa: PLC0415 - matplotlib would cost every start half a second

    with errors_shown():
        for line in digits_demo.run(folder, overwrite=overwrite, progress=not quiet):
            if not quiet:
                say(line)


def _apply(
    verb: Literal["embed", "encode"], run: Path, source: Path, target: Path, *, overwrite: bool, quiet: bool
) -> None:
    if target.suffix not in {".npy", ".parquet"}:
        raise ValueError(f"cannot write {target}: unknown ending {target.suffix!r}; use .npy or .parquet")
    if target.exists() and not overwrite:
        raise ValueError(f"{target} exists; use --overwrite to replace it")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent}; make it first")
    model = methods.load(run)
    given = model.read(source, progress=not quiet)
    rows = getattr(model, verb)(given, progress=not quiet).numpy()
    write = _write_npy if target.suffix == ".npy" else partial(_write_parquet, ids=given.ids, column=COLUMNS[verb])
    write_atomically(target, partial(write, rows))
    tell_broken(given.broken, "which have no row")
    if not quiet:
        say(f"{len(rows)} rows of {rows.shape[1]} {rows.dtype} written to {target}")


def _write_npy(rows: np.ndarray, path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, rows)


def _write_parquet(rows: np.ndarray, path: Path, ids: np.ndarray | None, column: str) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    names = np.arange(len(rows)) if ids is None else ids
    pq.write_table(pa.table({"id": pa.array(names), column: lists}), path)


def say(line: str) -> None:
    """Print a line as it is: names of files may look like markup, and the terminal breaks long lines itself."""
    out.print(line, soft_wrap=True, markup=False)


def tell_broken(broken: dict[str, str], consequence: str) -> None:
    """Name the images that could not be read."""
    if broken:
        listed = "\n  ".join(f"{name}: {reason}" for name, reason in broken.items())
        err.print(f"unreadable images, {consequence}: {len(broken)}\n  {escape(listed)}", soft_wrap=True)


@contextmanager
def notes_shown(quiet: bool) -> Iterator[None]:
    """What the package warns of becomes a line for the user; what its libraries do, they need not read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, Note) and not quiet:
            err.print(f"[bold yellow]note:[/] {escape(str(warning.message))}", soft_wrap=True)


@contextmanager
def errors_shown(stopped: str = "stopped") -> Iterator[None]:
    """Errors that a user can mend become one line and exit code 1; anything else is our bug and keeps its traceback."""
    try:
        yield
    except (ValueError, OSError, Diverged) as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print(stopped)
        raise typer.Exit(130) from None
