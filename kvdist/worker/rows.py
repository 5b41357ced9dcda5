"""What the worker knows of its sequences, kept from the plans alone (S24, S26).

Owns:   tokens and sampling of each sequence, and its row in the block tables.
Knows nothing of: the scheduler; K/V, models.
Units:  tokens.
"""

from collections.abc import Iterable, Sequence
from secrets import randbits
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kvdist.cache import KVCacheSpec
from kvdist.errors import LocalMisuse
from kvdist.ids import RequestId
from kvdist.sched.plan import NewSequence, ScheduledSequence
from kvdist.sched.sampling import Sampling
from kvdist.sched.table_checksum import used_entries
from kvdist.worker.tables import BlockTables


class Row:
    """One sequence."""

    __slots__ = (
        "_tokens",
        "num_encoder_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "number",
        "sampling",
        "seed",
    )

    def __init__(self, new: NewSequence, number: int) -> None:
        #: Its row in the block tables.
        self.number = number
        self.sampling: Sampling = new.sampling
        #: Of its own, if it didn't bring one.
        self.seed = randbits(63) if new.sampling.seed is None else new.sampling.seed
        #: What its cross attention reads.
        heard = new.audio.num_tokens if new.audio is not None else 0
        self.num_encoder_tokens = heard or new.num_loaded_encoder_tokens
        self.num_prompt_tokens = new.num_prompt_tokens
        self.num_tokens = len(new.token_ids)
        self._tokens = np.array(new.token_ids, np.int64)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """All known tokens."""
        return self._tokens[: self.num_tokens]

    def append(self, token: int) -> None:
        """One more is known."""
        if self.num_tokens == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1


class Rows:
    """All sequences that the node has told of and not taken back."""

    def __init__(self, num_groups: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.tables = BlockTables(num_groups)
        self._by_id: dict[RequestId, Row] = {}
        self._by_number: list[Row] = []

    def drop(self, request_ids: Iterable[RequestId]) -> None:
        """They are gone; an unknown one is nothing to drop."""
        for request_id in request_ids:
            row = self._by_id.pop(request_id, None)
            if row is None:
                continue
            last = self._by_number.pop()
            moved = self.tables.drop(row.number)
            assert moved == last.number
            if last is not row:
                last.number = row.number
                self._by_number[row.number] = last

    def add(self, new: NewSequence) -> Row:
        """A new row, with its whole tables. Raises: LocalMisuse if it is there already."""
        if new.request_id in self._by_id:
            raise LocalMisuse(f"sequence {new.request_id} is new, but has a row")
        if (
            not new.token_ids
            or not 0 <= min(new.token_ids) <= max(new.token_ids) < self._vocab_size
        ):
            raise LocalMisuse(
                f"sequence {new.request_id} needs tokens, all within 0 .. {self._vocab_size - 1}"
            )
        row = Row(new, self.tables.add(new.block_ids))
        self._by_id[new.request_id] = row
        self._by_number.append(row)
        return row

    def extend(self, scheduled: ScheduledSequence) -> Row:
        """Its tables have what the plan adds; returns it. Raises: LocalMisuse if it isn't known."""
        row = self._by_id.get(scheduled.request_id)
        if row is None:
            raise LocalMisuse(f"sequence {scheduled.request_id} is scheduled, but has no row")
        self.tables.append(row.number, scheduled.new_block_ids)
        end = scheduled.num_computed_tokens + scheduled.num_tokens
        if not 0 <= scheduled.num_computed_tokens < end <= row.num_tokens:
            raise LocalMisuse(
                f"sequence {scheduled.request_id}: tokens {scheduled.num_computed_tokens} .. {end} "
                f"of {row.num_tokens}"
            )
        return row

    def checksum(self, specs: Sequence[KVCacheSpec], scheduled: Iterable[ScheduledSequence]) -> int:
        """Of the table entries that these turns use (I5), as `sched.table_checksum` has it."""
        checksum = 0
        for turn in scheduled:
            number = self._by_id[turn.request_id].number
            for spec, table in zip(specs, self.tables.groups, strict=True):
                entries = table.blocks[number, : table.lengths[number]][used_entries(spec, turn)]
                checksum = crc32(entries.tobytes(), checksum)
        return checksum

    def __len__(self) -> int:
        return len(self._by_id)
