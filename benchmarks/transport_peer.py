"""One of the two processes of the transports benchmark: a job a line in, an answer a line out.

Owns:   the process, its two threads, its transport.
Knows nothing of: what is measured.

    python -m benchmarks.transport_peer owner tcp://127.0.0.1:0
    -> {"address": "tcp://127.0.0.1:40123", "computes": "numpy"}       or {"missing": "why"}

    python -m benchmarks.transport_peer reader tcp://127.0.0.1:40123
    -> {"settings": {}}
    <- {"job": "pattern", "pattern": ["4 x 64 KiB", 4, 65536]}
    -> {"verbs": ["message"]}

An empty line, or the end of stdin, ends the reader, and that ends the owner. An error is a
traceback on stderr and an end.
"""

import asyncio
import json
import sys
import threading
from typing import Any

from benchmarks.meter import MainThread, Meter
from benchmarks.transport_calls import config
from benchmarks.transport_owner import Owner
from benchmarks.transport_reader import Reader
from transports.api import Link
from transports.errors import Unsupported
from transports.registry import make_transport

#: How long the owner waits for the reader.
_PATIENCE_S = 240.0


def say(answer: dict[str, Any]) -> None:
    """One line to the benchmark's own process."""
    print(json.dumps(answer), flush=True)


async def own(address: str, main_thread: MainThread) -> None:
    """Serve one reader."""
    try:
        transport = make_transport(address, config("owner"))
    except Unsupported as error:
        say({"missing": str(error)})
        return
    async with transport.open():
        listener = await transport.listen(address)
        say({"address": listener.address, "computes": main_thread.kind})
        async with asyncio.timeout(_PATIENCE_S):
            link = await listener.accept()
        await Owner(transport, link, Meter(main_thread)).serve()


async def read(address: str, main_thread: MainThread) -> None:
    """Do jobs until there are no more."""
    loop = asyncio.get_running_loop()
    transport = make_transport(address, config("reader"))
    async with transport.open():
        link = await transport.connect(address)
        reader = Reader(transport, link, Meter(main_thread))
        say(_about_ucx(link) if transport.scheme == "ucx" else {"settings": {}})
        while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            say(await reader.do(json.loads(line)))
        reader.let_go()
        await link.close()


def _about_ucx(link: Link) -> dict[str, Any]:
    """What UCX goes through, for the record, and the settings, so that tools can have the same."""
    from transports import ucp
    from transports.ucx_settings import settings

    ours = {f"UCX_{name}": value for name, value in settings(ucp.environment()).items()}
    return {"lanes": getattr(getattr(link, "_wire", None), "lanes", []), "settings": ours}


def main(role: str, address: str) -> None:
    """Links in a second thread, as in an engine; the first one computes when asked to."""
    main_thread = MainThread()
    failures: list[BaseException] = []

    def links() -> None:
        try:
            asyncio.run({"owner": own, "reader": read}[role](address, main_thread))
        except BaseException as error:  # noqa: BLE001 (raised in the main thread)
            failures.append(error)
        finally:
            main_thread.end()

    thread = threading.Thread(target=links, name="links")
    thread.start()
    main_thread.run()
    thread.join()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
