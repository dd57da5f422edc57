"""The client in docs/explorer.md works as it stands."""

import re
import socket
import threading
from pathlib import Path

import uvicorn

from combemb.collection.class_log import read_log
from combemb.explorer.server.app import Options, application

PAGE = Path(__file__).parents[2] / "docs" / "explorer.md"


def test_the_example_runs(run: Path, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        app = application(Options(run, prepares=False))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        serving = threading.Thread(target=server.run, args=([listening],))
        serving.start()
        values: dict[str, object] = {}
        try:
            exec(compile(example.replace(":8017", f":{port}"), str(PAGE), "exec"), values)
        finally:
            server.should_exit = True
            serving.join(30)
    assert not serving.is_alive()
    assert re.match(r"\d+ items: novel-1 -> red-tailed hawk - \d+ items are left to decide\n", capsys.readouterr().out)
    assert [change.kind for change in read_log(run)] == ["name", "undo"]
    assert len(values["hits"]) == 5
    assert values["labels"].startswith(b'"id","label"')
