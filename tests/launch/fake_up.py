"""`kvdist up`, with processes of `fake_kvdist.py`."""

import sys
from functools import partial
from pathlib import Path
from unittest import mock

from kvdist.cli import up as command
from kvdist.cli.main import app
from kvdist.launch.plan import Plan

if __name__ == "__main__":
    fake = str(Path(__file__).with_name("fake_kvdist.py"))
    with mock.patch.object(command, "Plan", partial(Plan, program=(sys.executable, fake))):
        app()
