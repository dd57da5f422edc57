"""The run: what it is, its curves, and the runs beside it."""

from fastapi import APIRouter

from combemb.explorer.server import bodies, described, messages, work
from combemb.explorer.server.current import Current


def routes(current: Current) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["run"])

    @router.get("/run")
    def run() -> messages.Run:
        """Say what the server shows: data, settings, metrics, meta-class sets, and what is there already."""
        return described.run(current.served)

    @router.get("/curves")
    def curves() -> messages.Curves:
        """Return the numbers of all epochs."""
        return described.curves(current.served)

    @router.get("/runs")
    def runs() -> messages.RunList:
        """List the runs that were fitted on the same data."""
        return messages.RunList(runs=current.runs())

    @router.post("/runs/current")
    def choose(asked: bodies.Chosen) -> messages.Run:
        """Show another run from now on."""
        current.choose(asked.name)
        work.draw_missing_map(current.jobs, current.served)
        return described.run(current.served)

    @router.get("/runs/{name}/compared", response_model_by_alias=True)
    def compared(name: str) -> messages.Compared:
        """Say what changed from the current run to another."""
        return work.comparison(current.served.path, current.beside(name))

    return router
