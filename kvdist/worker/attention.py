"""Attention over blocks: one function for all models, through transformers' attention seam.

Owns:   nothing; a call's metadata is made once (`batch`), and read here by every layer.
Knows nothing of: sequences, plans, block tables.
Units:  T tokens of one call, of all its sequences one after the other; H heads of keys, R queries a
        key head, D elements a head, L keys.
Source: `AttentionInterface` is how vLLM's transformers backend plugs in, too. Folding the queries
        of one key head together, so that keys need no copy a query head, is common.

A call first writes the K/V of all its tokens, then reads: so a sequence may read what another one
of the same call computes. Cross attention only reads: its K/V were written when the encoder ran.

    elements of a layer     [block][head][token][k | v, 2 D]     a *line* is one block and head
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kvdist.ids import GroupId

NAME: Final = "kvdist"


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Where one layer's K/V are. Both are views of the same memory, from the layer's page on."""

    group_id: GroupId
    num_heads: int
    #: `[n, 2 D]`: k and v of one token and head.
    tokens: torch.Tensor
    #: `[n, block size * 2 D]`: a line.
    lines: torch.Tensor


@dataclass(frozen=True, slots=True)
class SingleTokens:
    """S sequences with one token each, which read about as many blocks: padded to the longest."""

    #: Where in the call; a slice, which copies nothing, if they are neighbours.
    places: slice | torch.Tensor
    #: `[S * H * blocks]`.
    lines: torch.Tensor
    #: `[S, 1, 1, L]`, added to the scores.
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """Some tokens of one sequence, one after the other."""

    begin: int
    end: int
    #: `[H * blocks]`.
    lines: torch.Tensor
    #: `[1, 1, tokens, L]`, added to the scores.
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class GroupCall:
    """What all layers of a group do in one call."""

    #: `[T * H]`: where the K/V of each token and head are written; None: they are there.
    writes: torch.Tensor | None
    singles: tuple[SingleTokens, ...]
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of the model."""

    #: By the layer's index in the model.
    layers: Mapping[int, LayerMemory]
    #: The same for what the layer reads of an encoder.
    cross: Mapping[int, LayerMemory]
    groups: Mapping[GroupId, GroupCall]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    *,
    kvdist_call: AttentionCall | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write K/V of all tokens of the call, and attend. `[B, heads, T', D]` in, `[B, T', ...]` out.

    Batch and tokens are one here: what belongs together is in the call's metadata. The sliding
    window of a layer is its group's. Without a key it is cross attention, and without a call an
    encoder's: that keeps nothing, and every token reads every other.
    """
    if kvdist_call is None:
        assert key is not None and value is not None
        return scaled_dot_product_attention(query, key, value, scale=scaling).transpose(1, 2), None
    layers = kvdist_call.cross if key is None else kvdist_call.layers
    layer = layers[module.layer_idx]  # type: ignore[index]
    group = kvdist_call.groups[layer.group_id]
    size, num_queries, length, dim = query.shape
    if key is not None and value is not None and group.writes is not None:
        key_value = torch.cat((key, value), -1).transpose(1, 2).reshape(-1, 2 * dim)
        layer.tokens.index_copy_(0, group.writes, key_value)
    scores = _Scores(dim**-0.5 if scaling is None else scaling, softcap, s_aux)
    queries = query.transpose(1, 2).reshape(size * length, layer.num_heads, -1, dim)
    out = torch.empty_like(queries)
    for singles in group.singles:
        keys, values = _read(layer, singles.lines, len(singles.mask), dim)
        some = queries[singles.places]  # [S, H, R, D]
        out[singles.places] = scores.attend(some, keys, values, singles.mask, 1)
    for tile in group.tiles:
        keys, values = _read(layer, tile.lines, 1, dim)
        some = queries[tile.begin : tile.end].permute(1, 2, 0, 3)  # [H, R, T, D]
        shape = (layer.num_heads, some.shape[1], -1, dim)  # a view: no copies a query head
        keys, values = (x.transpose(0, 1).expand(shape) for x in (keys, values))
        found = scores.attend(some, keys, values, tile.mask, 0)
        out[tile.begin : tile.end] = found.permute(2, 0, 1, 3)
    return out.view(size, length, num_queries, dim), None


def _read(
    layer: LayerMemory, lines: torch.Tensor, size: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of these lines, `[size, H, L, D]` each."""
    found = layer.lines.index_select(0, lines).view(size, layer.num_heads, -1, 2 * dim)
    return found[..., :dim], found[..., dim:]


@dataclass(frozen=True, slots=True)
class _Scores:
    """How a layer's scores become weights."""

    scaling: float
    #: tanh keeps scores within so much of 0 (Gemma 2).
    softcap: float | None
    #: For each query head a score that takes its share and has no value (GPT-OSS).
    sinks: torch.Tensor | None

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        head_axis: int,
    ) -> torch.Tensor:
        """What `queries` read; key heads are along `head_axis`, query heads along the next."""
        if self.softcap is None and self.sinks is None:
            return scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=self.scaling
            )
        scores = (queries @ keys.transpose(-1, -2)) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        scores = scores + mask
        if self.sinks is None:
            return torch.softmax(scores, -1, dtype=torch.float32).to(queries.dtype) @ values
        shape = [1, 1, 1, 1]
        shape[head_axis : head_axis + 2] = queries.shape[head_axis : head_axis + 2]
        sinks = self.sinks.view(shape).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, sinks), -1), -1, dtype=torch.float32)
        return weights[..., :-1].to(queries.dtype) @ values


AttentionInterface.register(NAME, paged_attention)
