"""A pipe whose other end is held by whoever started this process: when that dies, this one ends.

Owns:   the thread that watches.
Knows nothing of: what the process does. Works wherever there are pipes and signals.
"""

import os
import signal
import threading
import time
from typing import Final

#: Between being asked to end and being made to.
_GRACE_S: Final = 5.0


def hold(descriptor: int) -> None:
    """The process ends soon after the other end of `descriptor`, a pipe, is closed."""
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    # Nobody reads any more what is said here, and saying it would be an error.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(nowhere, standard)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
