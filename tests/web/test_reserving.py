"""An address is taken until it is released, for all who would listen there."""

import socket

import pytest

from kvdist.errors import ConfigError
from kvdist.web.reserving import Reserved


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_nobody_else_can_have_it_before_it_is_released() -> None:
    port = free_port()
    with Reserved("127.0.0.1", port, "--port") as held:
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} \(--kv-port\): Address already"):
            Reserved("127.0.0.1", port, "--kv-port")
        client = socket.create_connection(("127.0.0.1", port))
        held.release()
        with client, socket.create_server(("127.0.0.1", port)), pytest.raises(ConnectionError):
            client.recv(1)
    with Reserved("127.0.0.1", port, "--port"):
        pass


def test_any_port_needs_none() -> None:
    with Reserved("nowhere.invalid", 0, "--port"):
        pass


def test_a_host_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match=r"nowhere.invalid:80 \(--port\)"):
        Reserved("nowhere.invalid", 80, "--port")
