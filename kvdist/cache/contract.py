"""What is refused before anything changes: the contract of calls about requests.

Owns:   nothing.
Knows nothing of: blocks, groups; it compares numbers.
Units:  tokens.
"""

from kvdist.cache.live_request import LiveRequest
from kvdist.cache.request import Request
from kvdist.cache.spec import KVCacheConfig
from kvdist.errors import IllegalAllocation


def check_numbers(*numbers: int) -> None:
    """Raises: IllegalAllocation unless all are whole and not negative."""
    for number in numbers:
        if type(number) is not int or number < 0:
            raise IllegalAllocation(f"{number!r} is not a number of tokens or blocks")


def check_request(request: Request, config: KVCacheConfig, live: LiveRequest | None) -> None:
    """Raises: IllegalAllocation for a request that is hashed in blocks of another size, or whose
    name a different live request has.
    """
    size = request.hash_block_size
    if size is not None and size != config.hash_block_size:
        raise IllegalAllocation(
            f"request {request.request_id} is hashed in blocks of {size} tokens, "
            f"not {config.hash_block_size}"
        )
    if live is not None and live.request is not request:
        raise IllegalAllocation(f"another live request is named {request.request_id}")


def check_tokens(
    request: Request,
    config: KVCacheConfig,
    live: LiveRequest | None,
    *,
    hit_tokens: int,
    external_tokens: int,
    new_tokens: int,
    adopts: bool,
) -> None:
    """Raises: IllegalAllocation for parts of the token space that can't be meant."""
    if not (hit_tokens or external_tokens or new_tokens):
        what = "nothing to compute or to adopt"
    elif external_tokens and hit_tokens + external_tokens > request.num_tokens:
        what = f"{hit_tokens} + {external_tokens} tokens to adopt, {request.num_tokens} are known"
    elif new_tokens > config.max_model_len:
        what = f"{new_tokens} new tokens at a time, sequences have {config.max_model_len}"
    elif live is None and request.num_computed_tokens:
        what = f"{request.num_computed_tokens} computed tokens, but it owns no blocks"
    elif live is not None and adopts:
        what = "it owns blocks already and can't adopt others"
    else:
        return
    raise IllegalAllocation(f"request {request.request_id}: {what}")


def check_processed(request: Request, num_processed_tokens: int) -> None:
    """Raises: IllegalAllocation if more is said to be processed than is computed."""
    if num_processed_tokens > request.num_computed_tokens:
        raise IllegalAllocation(
            f"request {request.request_id}: {num_processed_tokens} tokens processed, "
            f"{request.num_computed_tokens} are computed"
        )
