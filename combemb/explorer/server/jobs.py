"""Long work in child processes, one at a time, with what they say about their progress."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Literal

from combemb.explorer.server import child, messages
from combemb.explorer.server.problems import Refused

PROGRESS = re.compile(r"(?:step (\d+) of (\d+), )?(.+?)\s+(\d+)%\s*(.*)")  # as `system.progress` prints it
STEP = re.compile(r"step (\d+) of (\d+): (.+)")  # as `combemb run` prints it
KEPT_LINES, KEPT_JOBS = 200, 50
SECONDS_TO_STOP = 10.0  # until a job that does not stop is killed
SECONDS_BETWEEN_LINES = "1"

Status = Literal["running", "done", "failed", "stopped"]


@dataclass(eq=False)
class Job:
    """A child process. result: what `done` returned, called when it had ended well; `always` is called in any case."""

    id: str
    kind: str
    title: str
    command: list[str]
    done: Callable[[], messages.Result | None] = lambda: None
    always: Callable[[], object] = lambda: None
    status: Status = "running"
    progress: float | None = None
    step: messages.Step | None = None
    text: str = ""
    error: str | None = None
    result: messages.Result | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _began: float = field(default_factory=time.monotonic)
    _seconds: float | None = None
    _process: subprocess.Popen[str] | None = None
    _is_stopped: bool = False

    def message(self) -> messages.Job:
        """Return the job as the API shows it."""
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        shown = {name: getattr(self, name) for name in messages.Job.model_fields if hasattr(self, name)}
        started = self.started.isoformat(timespec="seconds")
        return messages.Job(**{**shown, "lines": list(self.lines), "started": started, "seconds": round(seconds, 1)})

    def run(self) -> None:
        """Run the process to its end; it ends with the thread that calls this, so that must live as long."""
        status: Status = "failed"
        try:
            with self._started() as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self.read(line.rstrip())
            if self._is_stopped:
                status = "stopped"
            elif process.returncode == 0:
                self.result = self.done()
                status, self.progress = "done", 1.0
            else:
                self.error = self._reason(process.returncode)
        except Exception as error:  # whatever happens, the job has an end that the page can show
            self.error = str(error) or type(error).__name__
        finally:
            self.always()
            self._seconds = time.monotonic() - self._began
            self.status = status

    def read(self, line: str) -> None:
        """Read a line that the process printed."""
        if found := PROGRESS.fullmatch(line):
            number, of, name, percent, text = found.groups()
            if number is not None:
                self.step = messages.Step(number=int(number), of=int(of), name=name)
            self.progress, self.text = int(percent) / 100, text if number else f"{name} {text}".strip()
            return
        if found := STEP.fullmatch(line):
            number, of, name = found.groups()
            self.step, self.progress = messages.Step(number=int(number), of=int(of), name=name), None
        if line:
            self.text = line
            self.lines.append(line)

    def stop(self) -> None:
        """Ask the process to stop, and kill it if it does not."""
        self._is_stopped = True
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._signal(process, signal.SIGINT)
        try:
            process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._signal(process, signal.SIGKILL)

    def _started(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "COMBEMB_PROGRESS_SECONDS": SECONDS_BETWEEN_LINES, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", child.__name__, *self.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C in the terminal of the server is for the server, which stops its jobs
            env={name: value for name, value in environment.items() if name not in {"FORCE_COLOR", "COLUMNS"}},
        )
        if self._is_stopped:
            self._signal(self._process, signal.SIGKILL)
        return self._process

    @staticmethod
    def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def _reason(self, code: int) -> str:
        errors = [line for line in self.lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        return self.lines[-1] if self.lines else f"the process ended with code {code}"


class Jobs:
    """The jobs since the server was started."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._numbers, self._lock = count(1), threading.Lock()

    def start(
        self,
        kind: str,
        title: str,
        command: list[str],
        done: Callable[[], messages.Result | None] = lambda: None,
        always: Callable[[], object] = lambda: None,
    ) -> Job:
        """Start a job: a module and its arguments; refuse if another one runs."""
        with self._lock:
            self.require_none()
            job = Job(str(next(self._numbers)), kind, title, command, done, always)
            thread = threading.Thread(target=job.run, name=f"job {job.id}", daemon=True)
            self._jobs[job.id], self._threads[job.id] = job, thread
            for old in list(self._jobs)[:-KEPT_JOBS]:
                del self._jobs[old], self._threads[old]
            thread.start()
        return job

    def require_none(self) -> None:
        """Refuse if a job runs."""
        running = self.running()
        if running is not None:
            raise Refused(409, "busy", f"a job is running already: {running.title}", "wait for it, or stop it")

    def running(self) -> Job | None:
        """Return the job that runs now."""
        return next((job for job in self._jobs.values() if job.status == "running"), None)

    def get(self, number: str) -> Job:
        """Return a job; refuse if it is unknown."""
        if number not in self._jobs:
            raise Refused(404, "missing", f"there is no job {number!r}")
        return self._jobs[number]

    def all(self) -> list[Job]:
        """Return all jobs, the last first."""
        return list(self._jobs.values())[::-1]

    def close(self) -> None:
        """Stop what runs, and wait for its end."""
        for job in self.all():
            if job.status == "running":
                job.stop()
        for thread in list(self._threads.values()):
            thread.join(SECONDS_TO_STOP)
