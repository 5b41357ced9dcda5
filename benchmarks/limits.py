"""What others reach on this machine: iperf3, UCX's own perftest, sockets without any transport.

Owns:   the processes of each tool while it runs.
Knows nothing of: transports, pools.
Units:  GB/s (10^9 bytes), seconds.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.meter import URGENT, first_in_line

#: Bytes that one run of perftest moves, about, and the fewest messages.
_PERFTEST_BYTES: Final = 64 << 20
_PERFTEST_LEAST: Final = 64
#: perftest counts in MiB/s.
_MIB: Final = 1 << 20
#: Columns of its last line: messages, then median, average and overall latency in µs, then speeds.
_LATENCY, _SPEED = 3, 5
#: A tool that takes longer has no figure in that repeat.
_PATIENCE_S: Final = 10.0
_IPERF_BYTES: Final = "1G"
#: Largest message that iperf3 can send.
_IPERF_MOST: Final = 1 << 20
#: Sends back whatever comes over a socket that it inherits.
_ECHO: Final = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock:
    while data := sock.recv(65536):
        sock.sendall(data)
"""


class ToolError(Exception):
    """A tool is missing, or ended without a figure."""


def tools(name: str, environment: Mapping[str, str]) -> dict[str, Callable[[int], float]]:
    """The tools for a transport by name; each tells GB/s at a message size. Raises: ToolError."""
    if name == "tcp":
        return {"iperf3": iperf3}
    if name.startswith("ucx"):
        return {
            test: lambda size, test=test: perftest(test, size, environment)[1]  # type: ignore[misc]
            for test in ("tag_bw", "ucp_get")
        }
    return {}


# -- iperf3 ------------------------------------------------------------------------------------


def iperf3(size: int) -> float:
    """One stream over loopback, `size` bytes a call. Raises: ToolError."""
    program = shutil.which("iperf3")
    if program is None:
        raise ToolError("no iperf3 here")
    port = str(_free_port())
    with _running([program, "-s", "-1", "-p", port], os.environ):
        client = [program, "-c", "127.0.0.1", "-p", port, "-n", _IPERF_BYTES, "-J"]
        client += ["-l", str(min(size, _IPERF_MOST))]
        printed = json.loads(_patiently(client, os.environ, lambda text: '"error"' not in text))
    try:
        return float(printed["end"]["sum_received"]["bits_per_second"]) / 8e9
    except KeyError:
        raise ToolError(f"iperf3: {printed.get('error', 'no figure')}") from None


# -- ucx_perftest ------------------------------------------------------------------------------


def perftest(test: str, size: int, environment: Mapping[str, str]) -> tuple[float, float]:
    """Latency in seconds and GB/s of one of its tests between two processes. Raises: ToolError."""
    program, libraries = _perftest_program()
    variables = os.environ | environment | {"LD_LIBRARY_PATH": libraries}
    port = str(_free_port())
    count = str(max(_PERFTEST_LEAST, _PERFTEST_BYTES // size)) if size > 4096 else "5000"
    client = [program, "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", count]
    with _running([program, "-p", port], variables):
        line = _patiently([*client, "-w", "64", "-f"], variables).splitlines()[-1].split()
    try:
        return float(line[_LATENCY]) / 1e6, float(line[_SPEED]) * _MIB / 1e9
    except (IndexError, ValueError):
        raise ToolError(f"ucx_perftest {test}: no figure") from None


def _perftest_program() -> tuple[str, str]:
    """It comes with the libucx wheel, which ucxx brings; with it, where its libraries are."""
    found = importlib.util.find_spec("libucx")
    for folder in map(Path, (found.submodule_search_locations or ()) if found else ()):
        program = folder / "bin" / "ucx_perftest"
        if program.exists():
            return str(program), str(folder / "lib")
    raise ToolError("no ucx_perftest here: it comes with ucxx-cu12")


# -- round trips -------------------------------------------------------------------------------


def socket_trips(family: socket.AddressFamily, size: int, times: int) -> list[float]:
    """Round trips between two processes over blocking sockets: the least there can be in Python."""
    ours, theirs = _connected(family)
    child = [*_before(), sys.executable, "-c", _ECHO, str(theirs.fileno())]
    with ours, subprocess.Popen(child, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        with first_in_line():
            trips = [_trip(ours, bytes(size)) for _ in range(times)]
        ours.shutdown(socket.SHUT_WR)
        process.wait(_PATIENCE_S)
    return trips


def _trip(sock: socket.socket, data: bytes) -> float:
    start = time.perf_counter()
    sock.sendall(data)
    left = len(data)
    while left:
        left -= len(sock.recv(left))
    return time.perf_counter() - start


def _connected(family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for sock in (ours, theirs):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


# -- processes ---------------------------------------------------------------------------------


@contextmanager
def _running(command: list[str], environment: Mapping[str, str]) -> Iterator[None]:
    """A server that says nothing, killed when the block is left."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [*_before(), *command], env=environment, stdout=quiet, stderr=quiet
    ) as process:
        try:
            yield
        finally:
            process.kill()


def _patiently(
    command: list[str], environment: Mapping[str, str], good: Callable[[str], bool] = bool
) -> str:
    """What a client prints; it is started again while its server doesn't listen yet."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            done = subprocess.run(
                [*_before(), *command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=max(0.1, deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ToolError(f"{Path(command[0]).name} took more than {_PATIENCE_S} s") from None
        if done.returncode == 0 and done.stdout.strip() and good(done.stdout):
            return done.stdout
        time.sleep(0.1)


def _before() -> list[str]:
    """What lets a tool go before others, if that is asked for."""
    return ["chrt", "--rr", "1"] if URGENT in os.environ else []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
