"""`combemb index`: make the items of a run searchable."""

from typing import Annotated

import typer
from rich.filesize import decimal

from combemb.cli.console import running, say, tell_broken
from combemb.cli.options import Embeddings, Images, LabelFile, Overwrite, Quiet, Run, chosen_data, read_label_file


def index(
    run: Run,
    images: Images = None,
    embeddings: Embeddings = None,
    labels: LabelFile = None,
    add: Annotated[bool, typer.Option("--add", help="Add to the existing index.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make the data that the run was fitted on searchable, or other data; the index is stored in the run folder.

    Test items of the fitted data are not indexed; all items of `--images` are.

    Example: `combemb index runs/photos`, and later `combemb index runs/photos --images new-photos/ --add`
    """
    from combemb.collection.indexed import Collection
    from combemb.learning.run_folder import ENTRIES, INDEX

    with running(quiet, "stopped; the index is unchanged"):
        data = chosen_data(images, embeddings)
        if add and overwrite:
            raise ValueError("--add and --overwrite are mutually exclusive; choose one")
        if add and data is None:
            raise ValueError("--add needs data to add; use --images or --embeddings")
        names = read_label_file(labels)
        if add:
            collection = Collection.open(run)
            collection.add(data, labels=names, progress=not quiet)
            collection.save()
        else:
            collection = Collection.build(run, data, labels=names, overwrite=overwrite, progress=not quiet)
        tell_broken(collection.broken, "the index")
        n_codes, bits = collection.index.n_codes, collection.model.codebook.bits
        labelled = f"{len(collection):,} entries, {collection.n_labelled:,} of them labelled"
        say(f"{labelled}, with {n_codes:,} distinct codes of {bits} bits")
        sizes = [f"{name} ({decimal((run / name).stat().st_size)})" for name in (INDEX, ENTRIES)]
        say(f"written to {run}: {', '.join(sizes)}")
