"""`python -m kvdist` is the command `kvdist`."""

from kvdist.cli.main import app

app(prog_name="kvdist")
