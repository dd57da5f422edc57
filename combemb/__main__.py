"""`python -m combemb` is the command line."""

from combemb.cli import app

app(prog_name="combemb")
