"""Links over TCP: addresses, TLS, and what a bad network does (the proxy's faults)."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.transports import certificates
from tests.transports.linked import SHORT, Linked, config, linked
from tests.transports.proxy import Fault, Proxy, proxied
from transports.base import WireListener
from transports.config import SessionConfig
from transports.errors import (
    LocalMisuse,
    PeerClosed,
    PeerLost,
    Refused,
    RemoteProtocol,
    TransportError,
    Unreachable,
)
from transports.sockets import tune
from transports.tcp import TcpTransport

MIB = 1 << 20
HERE = "tcp://127.0.0.1:0"


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as sock, contextlib.suppress(OSError):
        sock.bind(("::1", 0))
        return True
    return False


async def _talk(pair: Linked, size: int = 3 * MIB) -> None:
    """Both directions at once, then a clean end."""
    for sender, receiver in ((pair.near, pair.far), (pair.far, pair.near)):
        source, target = os.urandom(size), bytearray(size)
        views = [memoryview(target)[:7], memoryview(target)[7:]]
        async with asyncio.TaskGroup() as group:
            group.create_task(sender.send(1, b"meta", [source[:100], source[100:]]))
            await receiver.recv(lambda _, views=views: views)  # type: ignore[misc]
        assert target == source
    await pair.near.close()
    with pytest.raises(PeerClosed):
        await pair.far.recv()


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]"])
def test_hosts(host: str) -> None:
    if "::" in host and not _has_ipv6():
        pytest.skip("no IPv6 on this machine")

    async def main() -> None:
        async with linked(f"tcp://{host}:0") as pair:
            assert pair.address.startswith(f"tcp://{host}:") and not pair.address.endswith(":0")
            assert pair.far.peer.address.startswith("tcp://")
            await _talk(pair, 1_000)

    asyncio.run(main())


def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            TcpTransport(config("near")).open() as near,
            TcpTransport(config("far")).open() as far,
        ):
            listener = await far.listen(HERE)
            port = int(listener.address.rsplit(":", 1)[1])
            places = [(socket.AF_INET, (f"127.0.0.{last}", port)) for last in (3, 2, 1)]

            async def resolve(_: object) -> list[Any]:
                return places

            monkeypatch.setattr("transports.sockets._resolve", resolve)
            link = await near.connect(f"tcp://several:{port}")
            assert link.peer.node_id == "far"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("tcp://nobody.invalid:7000", Unreachable),
        (f"tcp://{'x' * 70}.invalid:7000", LocalMisuse),
        ("tcp://:7000", LocalMisuse),
        ("tcp://127.0.0.1", LocalMisuse),
        ("tcp://127.0.0.1:70000", LocalMisuse),
        ("shm:///tmp/socket", LocalMisuse),
        ("tcp://255.255.255.255:7000", Unreachable),
    ],
)
def test_addresses_that_lead_nowhere(address: str, error: type[TransportError]) -> None:
    async def main() -> None:
        async with TcpTransport(config()).open() as transport:
            with pytest.raises(error):
                await transport.connect(address)

    asyncio.run(main())


def test_an_address_of_another_host_is_not_listened_at() -> None:
    async def main() -> None:
        async with TcpTransport(config()).open() as transport:
            with pytest.raises(LocalMisuse):
                await transport.listen("tcp://192.0.2.1:0")

    asyncio.run(main())


def test_a_socket_that_meets_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the port that is dialled is also the one that the dialling socket gets."""

    async def main() -> None:
        async with TcpTransport(config()).open() as transport:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", 0))
                where = probe.getsockname()

            class Bound(socket.socket):
                def __init__(self, *args: Any) -> None:
                    super().__init__(*args)
                    self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    self.bind(where)

            monkeypatch.setattr("socket.socket", Bound)
            with pytest.raises(Unreachable, match="itself"):
                await transport.connect(f"tcp://127.0.0.1:{where[1]}")

    asyncio.run(main())


def test_a_listener_that_has_run_out_of_descriptors_comes_back() -> None:
    async def main() -> None:
        async with (
            TcpTransport(config("near")).open() as near,
            TcpTransport(config("far")).open() as far,
        ):
            listener = await far.listen(HERE)
            connecting = asyncio.create_task(near.connect(listener.address))
            await asyncio.sleep(0)  # it has its socket
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                await asyncio.sleep(0.1)
                assert not connecting.done()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            await connecting
            await listener.accept()

    asyncio.run(main())


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.make(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.make(tmp_path_factory.mktemp("tls"), "others")


def _tls(own: Path, **settings: Any) -> dict[str, Any]:
    return {
        "near": config("near", tls_client=certificates.client(own), **settings),
        "far": config("far", tls_server=certificates.server(own), **settings),
    }


@pytest.mark.parametrize("size", [10, 100_000, 12 * MIB])
def test_tls_carries_all_sizes(ours: Path, size: int) -> None:
    async def main() -> None:
        async with linked(HERE, **_tls(ours)) as pair:
            await _talk(pair, size)

    asyncio.run(main())


def test_tls_with_a_name_many_messages_and_a_token(ours: Path) -> None:
    settings = _tls(ours, token=b"sixteen bytes or more")

    async def main() -> None:
        async with linked("tcp://localhost:0", **settings) as pair:
            async with asyncio.TaskGroup() as group:

                async def send() -> None:
                    for number in range(300):
                        await pair.near.send(1, b"m" * number, [bytes(number * 7 + 1)])

                group.create_task(send())
                for number in range(300):
                    head = await pair.far.recv(lambda head: [bytearray(head.body_bytes)])
                    assert (len(head.meta), head.body_bytes) == (number, number * 7 + 1)
            await _talk(pair, 1_000)

    asyncio.run(main())


def test_tls_both_directions_at_once(ours: Path) -> None:
    size = 8 * MIB

    async def main() -> None:
        async with linked(HERE, **_tls(ours)) as pair, asyncio.TaskGroup() as group:
            for sender, receiver in ((pair.near, pair.far), (pair.far, pair.near)):
                group.create_task(sender.send(1, b"", [bytes(size)]))
                group.create_task(receiver.recv(lambda _: [bytearray(size)]))

    asyncio.run(main())


def test_tls_on_both_sides(ours: Path, others: Path) -> None:
    near = config("near", tls_client=certificates.client(ours, own=others))
    far = config("far", tls_server=certificates.server(ours, believed=others))

    async def main() -> None:
        async with linked(HERE, near, far) as pair:
            await _talk(pair)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def _strangers(near: SessionConfig, far: SessionConfig) -> AsyncIterator[TransportError]:
    """What `near` gets when it dials `far`, who must refuse it too."""
    async with TcpTransport(near).open() as dialling, TcpTransport(far).open() as listening:
        listener = await listening.listen(HERE)
        assert isinstance(listener, WireListener)
        with pytest.raises(TransportError) as caught:
            await dialling.connect(listener.address)
        async with asyncio.timeout(5):
            while not listener.num_refused:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.01)
        assert listener.num_refused == 1
        yield caught.value


def test_a_plain_peer_at_a_tls_listener(ours: Path) -> None:
    async def main() -> None:
        far = config("far", tls_server=certificates.server(ours))
        async with _strangers(config("near"), far) as error:
            assert isinstance(error, RemoteProtocol) and "TLS" in str(error)

    asyncio.run(main())


def test_a_tls_peer_at_a_plain_listener(ours: Path) -> None:
    async def main() -> None:
        near = config("near", tls_client=certificates.client(ours))
        async with _strangers(near, config("far")) as error:
            assert isinstance(error, Unreachable | RemoteProtocol) and "TLS" in str(error)

    asyncio.run(main())


def test_a_certificate_that_nobody_believes(ours: Path, others: Path) -> None:
    async def main() -> None:
        near = config("near", tls_client=certificates.client(others))
        far = config("far", tls_server=certificates.server(ours))
        async with _strangers(near, far) as error:
            assert isinstance(error, Refused) and "certificate" in str(error)

    asyncio.run(main())


def test_a_certificate_for_another_host(ours: Path) -> None:
    async def main() -> None:
        context = certificates.client(ours)
        async with (
            TcpTransport(config("near", tls_client=context)).open() as near,
            TcpTransport(config("far", tls_server=certificates.server(ours))).open() as far,
        ):
            listener = await far.listen("tcp://127.0.0.2:0")
            with pytest.raises(Refused, match="certificate"):
                await near.connect(listener.address)

    asyncio.run(main())


def test_a_peer_without_the_certificate_that_is_asked_for(ours: Path, others: Path) -> None:
    async def main() -> None:
        near = config("near", tls_client=certificates.client(ours))
        far = config("far", tls_server=certificates.server(ours, believed=others))
        async with _strangers(near, far) as error:
            assert not isinstance(error, LocalMisuse)

    asyncio.run(main())


def test_a_tls_handshake_that_never_ends(ours: Path) -> None:
    async def main() -> None:
        tls = certificates.client(ours)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            settings = config("near", tls_client=tls, handshake_s=0.3)
            async with TcpTransport(settings).open() as near:
                with pytest.raises(Unreachable):
                    await near.connect(f"tcp://127.0.0.1:{port}")

    asyncio.run(main())


def test_a_silent_peer_at_a_tls_listener(ours: Path) -> None:
    async def main() -> None:
        settings = config("far", tls_server=certificates.server(ours), handshake_s=0.3)
        async with TcpTransport(settings).open() as far:
            listener = await far.listen(HERE)
            assert isinstance(listener, WireListener)
            port = int(listener.address.rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port)):
                while not listener.num_refused:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_tls_abort_and_a_corrupt_record(ours: Path) -> None:
    async def main() -> None:
        async with linked(HERE, **_tls(ours)) as pair:
            pair.near.abort()
            with pytest.raises(PeerLost):
                await pair.far.recv()
        async with _proxied(**_tls(ours)) as (pair, proxy):
            proxy.up.arm(Fault.CORRUPT, 20)
            await pair.near.send(1, b"x" * 100)
            with pytest.raises(RemoteProtocol):
                await pair.far.recv()

    asyncio.run(main())


# -- a bad network ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _proxied(
    near: SessionConfig | None = None, far: SessionConfig | None = None, **settings: Any
) -> AsyncIterator[tuple[Linked, Proxy]]:
    """A link through a proxy."""
    near, far = near or config("near", **settings), far or config("far", **settings)
    async with (
        TcpTransport(far).open() as far_transport,
        _listening(far_transport) as (listener, proxy),
        TcpTransport(near).open() as near_transport,
    ):
        link = await near_transport.connect(proxy.address)
        accepted = await listener.accept()
        yield Linked(link, accepted, near_transport, far_transport, proxy.address), proxy


@contextlib.asynccontextmanager
async def _listening(transport: Any) -> AsyncIterator[tuple[Any, Proxy]]:
    listener = await transport.listen(HERE)
    async with proxied(listener.address) as proxy:
        yield listener, proxy


def test_delay_and_small_pieces() -> None:
    async def main() -> None:
        async with _proxied() as (pair, proxy):
            for direction in (proxy.up, proxy.down):
                direction.delay_s, direction.piece_bytes = 0.001, 1_000
            await _talk(pair, 70_000)

    asyncio.run(main())


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.RESET, Fault.TRUNCATE])
@pytest.mark.parametrize("after", [0, 10, 50, 5_000])
def test_connections_that_break(fault: Fault, after: int) -> None:
    async def main() -> None:
        # The link's own deadlines are far away: only the connection can tell.
        async with _proxied(keepalive_s=30.0, lost_after_s=90.0) as (pair, proxy):
            proxy.up.arm(fault, after)
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                group.create_task(_lost(pair.near.send(1, b"", [bytes(8 * MIB)])))
                group.create_task(_lost(pair.far.recv(lambda _: [bytearray(8 * MIB)])))
            await pair.far.quiet()

    asyncio.run(main())


async def _lost(work: Any) -> None:
    with pytest.raises(PeerLost):
        await work


@pytest.mark.parametrize("after", [0, 50, 5_000])
def test_half_open_connections_are_found_by_both_sides(after: int) -> None:
    async def main() -> None:
        async with _proxied(**SHORT) as (pair, proxy):
            proxy.up.arm(Fault.FREEZE, after)
            target = bytearray(8 * MIB)
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                group.create_task(_lost(pair.near.send(1, b"", [b"x" * (8 * MIB)])))
                group.create_task(_lost(pair.far.recv(lambda _: [target])))
            await pair.far.quiet()
            before = bytes(target)
            proxy.frozen = False
            await asyncio.sleep(0.05)
            assert target == before

    asyncio.run(main())


@pytest.mark.parametrize("where", [0, 1, 5, 20, 43, 44, 60])
def test_a_corrupt_head(where: int) -> None:
    async def main() -> None:
        async with _proxied() as (pair, proxy):
            proxy.up.arm(Fault.CORRUPT, where)
            await pair.near.send(1, b"m" * 100)
            with pytest.raises(RemoteProtocol):
                await pair.far.recv()
            with pytest.raises(PeerLost):
                await pair.near.recv()

    asyncio.run(main())


@pytest.mark.parametrize("size", [100, 2 * MIB])
def test_a_corrupt_body(size: int) -> None:
    async def main() -> None:
        async with _proxied(checksum_bodies=True) as (pair, proxy), asyncio.TaskGroup() as group:
            proxy.up.arm(Fault.CORRUPT, 44 + (44 if size > 100 else 0) + size // 2)
            group.create_task(_sent_or_lost(pair.near.send(1, b"", [bytes(size)])))
            with pytest.raises(RemoteProtocol):
                await pair.far.recv(lambda _: [bytearray(size)])

    asyncio.run(main())


async def _sent_or_lost(work: Any) -> None:
    with contextlib.suppress(PeerLost):
        await work


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("after", [0, 30, 100])
def test_a_handshake_through_a_bad_network(direction: str, fault: Fault, after: int) -> None:
    async def main() -> None:
        async with (
            TcpTransport(config("far", handshake_s=0.5)).open() as far,
            _listening(far) as (_, proxy),
            TcpTransport(config("near", handshake_s=0.5)).open() as near,
        ):
            getattr(proxy, direction).arm(fault, after)
            with pytest.raises((Unreachable, RemoteProtocol, Refused)):
                await near.connect(proxy.address)
            link = await near.connect(f"tcp://127.0.0.1:{_.address.rsplit(':', 1)[1]}")
            assert link.peer.node_id == "far"

    asyncio.run(main())


def test_errno_texts_are_for_people() -> None:
    async def main() -> None:
        async with TcpTransport(config()).open() as transport:
            with pytest.raises(Unreachable, match=os.strerror(errno.ECONNREFUSED)):
                await transport.connect("tcp://127.0.0.1:1")

    asyncio.run(main())


@pytest.mark.parametrize(("source", "smaller"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_only_within_a_host_is_the_send_buffer_ours(source: str, smaller: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname(), source_address=(source, 0))
        with sock, server.accept()[0] as other:
            before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            for end in (sock, other):
                tune(end)
            after = {end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in (sock, other)}
            assert all(size <= MIB for size in after) is smaller
            assert (after == {before}) is not smaller
