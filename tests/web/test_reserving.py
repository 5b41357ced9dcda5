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
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        held.release()
        with socket.create_server(("127.0.0.1", port)):
            pass
    with Reserved("127.0.0.1", port, "--port"):
        pass


def test_clients_are_refused_meanwhile() -> None:
    """None of them waits, however many they are."""
    port = free_port()
    with Reserved("127.0.0.1", port, "--port"):
        for _ in range(5):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=2)


def test_what_an_earlier_run_has_left_is_no_hindrance() -> None:
    """The side that closes first keeps the connection in mind for a minute."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()
        assert client.recv(1) == b""
        client.close()
    with Reserved("127.0.0.1", port, "--port"):
        pass


def test_any_port_needs_none() -> None:
    with Reserved("nowhere.invalid", 0, "--port"):
        pass


def test_a_host_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match=r"nowhere.invalid:80 \(--port\)"):
        Reserved("nowhere.invalid", 80, "--port")
