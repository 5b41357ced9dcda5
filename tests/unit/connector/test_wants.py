"""What a claim is called, and what it would bring."""

from kvdist.cache import BlockHasher, Request
from kvdist.connector.machine import Machine
from kvdist.connector.params import ByHash, ByTransfer
from kvdist.connector.tables.claim import CLAIM
from kvdist.connector.wants import Claim, content_of, name_of
from tests.halves import a_ticket


def request(num_tokens: int, *, hashed: bool = True) -> Request:
    return Request("r", list(range(num_tokens)), BlockHasher(4) if hashed else None)


def claim(num_tokens: int | None) -> Claim:
    ticket = None if num_tokens is None else a_ticket(num_tokens=num_tokens)
    return Claim("c", "p", ByHash("p"), Machine(CLAIM, "c"), 0.0, ticket=ticket)


def test_one_claim_a_lease_a_transfer_or_a_request() -> None:
    assert name_of(a_ticket(), "a") == name_of(a_ticket(num_tokens=8), "b")
    assert name_of(ByTransfer("p", "t"), "a") == name_of(ByTransfer("p", "t"), "b")
    assert name_of(ByHash("p"), "a") != name_of(ByHash("p"), "b")
    names = {name_of(source, "a") for source in (a_ticket(), ByTransfer("p", "t"), ByHash("p"))}
    assert len(names) == 3
    assert name_of(ByTransfer("p", "t"), "a") != name_of(ByTransfer("q", "t"), "a")
    assert name_of(a_ticket(), "a") != name_of(a_ticket(node="q"), "a")
    assert name_of(a_ticket(), "a") != name_of(a_ticket(run=2), "a")


def test_content_is_the_hash_of_the_last_whole_block() -> None:
    hashes = request(17).block_hashes
    assert content_of(claim(16), request(17)) == hashes[3]
    assert content_of(claim(15), request(17)) == hashes[2]
    assert content_of(claim(3), request(17)) == "c", "no whole block"
    assert content_of(claim(40), request(17)) == "c", "more than is known"
    assert content_of(claim(None), request(17)) == "c", "not known yet"
    assert content_of(claim(16), request(17, hashed=False)) == "c"
