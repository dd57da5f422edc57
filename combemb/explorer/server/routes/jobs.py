"""Jobs: fit again, discover, index, draw the map."""

from fastapi import APIRouter

from combemb.explorer.server import bodies, messages, work
from combemb.explorer.server.current import Current


def routes(current: Current) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/jobs", tags=["jobs"])

    @router.post("", status_code=202)
    def start(asked: bodies.AnyJob) -> messages.Job:
        """Start a job."""
        return work.start(current.jobs, current.served, asked).message()

    @router.get("")
    def listed() -> messages.JobList:
        """List all jobs since the server was started, the last first."""
        return messages.JobList(jobs=[job.message() for job in current.jobs.all()])

    @router.get("/{number}")
    def shown(number: str) -> messages.Job:
        """Say how far a job is."""
        return current.jobs.get(number).message()

    @router.delete("/{number}")
    def stop(number: str) -> messages.Job:
        """Stop a job."""
        job = current.jobs.get(number)
        job.stop()
        return job.message()

    return router
