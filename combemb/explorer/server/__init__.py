"""The server of one run folder: a page and the HTTP API that it uses."""
