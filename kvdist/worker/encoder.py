"""A model that hears: its encoder, run once a sequence, and its decoder, which reads from blocks.

Owns:   nothing; what the encoder makes is in the pool's blocks before the decoder runs.
Knows nothing of: plans; how sound becomes spectra.
Units:  N tokens of the encoder, H heads, D elements a head.
Source: transformers' `EncoderDecoderCache` (5.19): a module whose cross attention counts as updated
        takes keys and values from the cache, and never looks at the encoder. Ours says "in blocks",
        which the attention function reads (`attention`).

Whoever has filled the cross-attention blocks, the decoder asks for nothing else: `run` does it
here, and bytes that were computed elsewhere would do as well.
"""

from typing import Any, Final

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

from kvdist.sched.audio import Audio
from kvdist.worker.attention import AttentionCall
from kvdist.worker.batch import CallBuilder, Packing
from kvdist.worker.model import Model
from kvdist.worker.rows import Row
from kvdist.worker.states import PassesThrough
from kvdist.worker.tables import BlockTables

_NEVER: Final = float("-inf")


class _InBlocks(PassesThrough):
    """Cross attention of one layer: keys and values are None, and there."""

    def get_seq_length(self) -> int:
        """Not 0: they are there."""
        return 1


class EncoderDecoder:
    """Encoder and decoder of one model."""

    def __init__(self, model: Model, builder: CallBuilder) -> None:
        assert model.hearing is not None
        network: Any = model.network
        self._hearing = model.hearing
        #: That the encoder makes of any sound.
        self.num_tokens = model.hearing.window.num_tokens
        self._model, self._builder = model, builder
        self._encoder, self._decoder = network.model.encoder, network.model.decoder
        self._head = network.proj_out
        layers = range(network.config.decoder_layers)
        self._cache = EncoderDecoderCache(
            Cache(layers=[PassesThrough() for _ in layers]),
            Cache(layers=[_InBlocks() for _ in layers]),
        )
        #: What a layer looks at to see that there is an encoder.
        self._elsewhere = torch.empty(0, device=model.device, dtype=model.dtype)
        settings = network.generation_config
        self._suppressed = self._tokens(settings.suppress_tokens)
        self._suppressed_first = self._tokens(settings.begin_suppress_tokens)

    def _tokens(self, token_ids: list[int] | None) -> torch.Tensor:
        known = [token for token in token_ids or () if 0 <= token < self._model.vocab_size]
        return torch.tensor(known, dtype=torch.int64, device=self._model.device)

    def run(self, row: Row, audio: Audio, tables: BlockTables) -> None:
        """The row's cross-attention blocks have what its sound is in each layer of the decoder.

        Raises: LocalMisuse if it is not what the model hears.
        """
        features = self._hearing.features(audio).to(self._model.device, self._model.dtype)
        heard = self._encoder(features).last_hidden_state[0]  # [N, ...]
        for index, memory in self._builder.cross.items():
            blocks = torch.from_numpy(tables.groups[memory.group_id].of_row(row.number))
            writes = self._builder.encoder_writes(memory, blocks.to(heard.device), len(heard))
            attends = self._decoder.layers[index].encoder_attn
            shape = (len(heard), memory.num_heads, -1)
            key_value = torch.cat(
                (attends.k_proj(heard).view(shape), attends.v_proj(heard).view(shape)), -1
            )
            memory.tokens.index_copy_(0, writes, key_value.flatten(0, 1))

    def decode(self, packing: Packing, call: AttentionCall) -> torch.Tensor:
        """Logits of the tokens after which one is sampled."""
        output = self._decoder(
            input_ids=packing.tokens.view(1, -1),
            position_ids=packing.positions.view(1, -1),
            encoder_hidden_states=self._elsewhere,
            past_key_values=self._cache,
            use_cache=True,
            kvdist_call=call,
        )
        logits: torch.Tensor = self._head(output.last_hidden_state[0, packing.samples])
        self._suppress(logits, packing)
        return logits

    def _suppress(self, logits: torch.Tensor, packing: Packing) -> None:
        """Tokens that the model's own settings leave out never come, some not as the first."""
        logits.index_fill_(-1, self._suppressed, _NEVER)
        sampling = (piece for piece in packing.pieces if piece.samples)
        for scores, piece in zip(logits, sampling, strict=True):
            if piece.end == piece.row.num_prompt_tokens:
                scores.index_fill_(-1, self._suppressed_first, _NEVER)
