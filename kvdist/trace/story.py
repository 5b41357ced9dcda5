"""One request's life, from its arrival to its end, with the causes of what happened to it.

Owns:   the words of a story; while it reads, whose content stands in which block.
Knows nothing of: files, nodes.
Units:  seconds since its arrival.

What becomes of its blocks after its end belongs to it: who finds them, who takes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvdist.ids import RequestId
from kvdist.trace.events import (
    Allocated,
    Arrived,
    Began,
    Ended,
    Entry,
    Event,
    Forgotten,
    Freed,
    GaveUp,
    Loaded,
    LoadFailed,
    Planned,
    Published,
    Tables,
    Told,
    Waits,
)
from kvdist.trace.line import story_line
from kvdist.trace.words import blocks, count, span, why_no_more


def story(entries: Iterable[Entry], request_id: RequestId) -> list[str]:
    """Lines about one request of one run of a node."""
    told = _Story(request_id)
    for entry in entries:
        told.hear(entry)
    return told.lines()


@dataclass(slots=True)
class _Decode:
    """Steps that did nothing but compute a token each."""

    first: int
    last: int
    start: int
    num_tokens: int


@dataclass(slots=True)
class _Story:
    req: RequestId
    _lines: list[str] = field(default_factory=list)
    #: Whose content can be found in a block.
    _owner: dict[int, RequestId] = field(default_factory=dict)
    #: The same of `req`'s alone: which tokens.
    _mine: dict[int, str] = field(default_factory=dict)
    _block_sizes: tuple[int, ...] = ()
    _prompt_tokens: int = 0
    _began_at: float | None = None
    #: Why it could not get blocks, when it was last said so.
    _lacked: dict[RequestId, Waits] = field(default_factory=dict)
    _decode: _Decode | None = None
    _decode_at: float = 0.0

    def hear(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, Began):
            self._block_sizes = event.block_sizes
        elif not isinstance(event, Forgotten) and event.req == self.req:
            if self._began_at is None:
                self._begin(entry)
            self._own(entry.t, event)
        else:
            self._others(entry.t, event)
        self._keep_books(event)

    def lines(self) -> list[str]:
        self._end_decode()
        return self._lines

    def _begin(self, entry: Entry) -> None:
        self._began_at = entry.t
        if not isinstance(entry.event, Arrived):
            self._say(entry.t, "what was before this is not in the file any more")

    def _say(self, t: float, text: str) -> None:
        self._end_decode()
        self._lines.append(story_line(t - (self._began_at or t), text))

    # -- its own life --------------------------------------------------------------------------

    def _own(self, t: float, event: Event) -> None:
        match event:
            case Arrived():
                self._prompt_tokens = event.prompt_tokens
                self._say(t, _arrives(event))
            case Waits():
                self._say(t, _waits(event))
            case Allocated():
                for sentence in self._gets(event):
                    self._say(t, sentence)
            case Published():
                size = self._block_sizes[event.group]
                where = span(event.first_block * size, len(event.blocks) * size)
                told = blocks(self._of_group(event.group, event.blocks))
                self._say(t, f"publishes {told} ({where}): others can find them")
            case Planned():
                self._step(t, event)
            case Told():
                self._say(t, "its first token is there")
            case Loaded():
                self._say(t, f"what came from elsewhere is there: {event.tokens} tokens in all")
            case LoadFailed():
                then = "it waits again" if event.again else "that is its end"
                self._say(t, f"what should come from elsewhere did not: {event.reason}; {then}")
            case GaveUp():
                self._say(t, self._gives_up(event))
            case Freed():
                self._say(t, self._frees(event))
            case Ended():
                why = f", {event.reason}" if event.reason else ""
                said = count(event.output_tokens, "token")
                self._say(t, f"ends: {event.status}{why}, after {said} of output")
            case _:
                pass

    def _gets(self, event: Allocated) -> Iterable[str]:
        if event.first:
            yield self._found(event)
        if any(event.external):
            told = count(event.external_tokens, "token")
            yield f"takes {blocks(event.external)} for {told} from elsewhere, unpublished till then"
        if any(event.new):
            what = count(event.new_tokens, "token")
            ahead = f" and {event.lookahead} slots ahead" if event.lookahead else ""
            free = f"free blocks: {event.free_before} -> {event.free_after}"
            yield f"takes {blocks(event.new)} for {what}{ahead}; {free}"
        for lost in event.evicted:
            owner = self._owner.get(lost.block, "somebody")
            whose = "its own old" if owner == self.req else f"{owner}'s"
            yield f"block {lost.block} held {whose} content, which nobody can find any more"

    def _found(self, event: Allocated) -> str:
        begin = f"begins in step {event.step}" if event.new_tokens else "gets its blocks"
        if not event.looked_up:
            return f"{begin}, without a look at what is cached"
        why = why_no_more(event, self._block_sizes)
        if not event.local_tokens:
            return f"{begin}, nothing of its prompt is cached here: {why}"
        owners = dict.fromkeys(
            self._owner.get(block, "somebody") for group in event.hit for block in group if block
        )
        whose = ", ".join("itself" if owner == self.req else owner for owner in owners)
        idle = sum(one.idle_hits for one in event.counts)
        return (
            f"{begin} with a hit of {count(event.local_tokens, 'token')} here: "
            f"{blocks(event.hit)} of {whose}, {idle} of them idle; no more, since {why}"
        )

    def _step(self, t: float, event: Planned) -> None:
        plain = event.samples and event.scheduled == 1 and not event.whole and not any(event.new)
        if plain and self._decode is not None:
            self._decode.last = event.step
            self._decode.num_tokens += 1
            return
        if plain and event.start >= self._prompt_tokens:
            self._decode = _Decode(event.step, event.step, event.start, 1)
            self._decode_at = t
            return
        end = event.start + event.scheduled
        last = ", the last of its prompt," if end == self._prompt_tokens else ""
        chunk = "a chunk of the prompt, " if event.start < self._prompt_tokens > end else ""
        samples = " and samples the next" if event.samples else ""
        where = span(event.start, event.scheduled)
        self._say(t, f"step {event.step} computes {chunk}{where}{last}{samples}")

    def _end_decode(self) -> None:
        decode, self._decode = self._decode, None
        if decode is None:
            return
        steps = f"step {decode.first} computes"
        if decode.last > decode.first:
            steps = f"steps {decode.first}-{decode.last} compute"
        self._say(self._decode_at, f"{steps} {span(decode.start, decode.num_tokens)}, one a step")

    def _gives_up(self, event: GaveUp) -> str:
        if event.how == "recompute":
            return f"has to be computed anew: {event.reason}"
        lack = self._lacked.get(event.by)
        needs = (
            f"needs {count(lack.needed, 'block')}, {lack.free} are free" if lack else "needs some"
        )
        if event.by == self.req:
            return f"is preempted: it {needs}, and it is the last of those that run"
        return f"is preempted for {event.by}, which {needs}: it is the last of those that run"

    def _frees(self, event: Freed) -> str:
        found = set(event.found)
        shared = [
            block
            for ids, refs in zip(event.blocks, event.refs, strict=True)
            for block, ref in zip(ids, refs, strict=True)
            if ref > 1
        ]
        plain = [b for group in event.blocks for b in group if b not in found and b not in shared]
        kept = [b for group in event.blocks for b in group if b in found and b not in shared]
        why = ", behind its window" if event.why == "window" else ""
        when = f" when step {event.after_step} is over" if event.after_step else ""
        parts = [
            f"{blocks([plain])} to the front of the free queue, without a key" if plain else "",
            f"{blocks([kept])} to its end, still to be found" if kept else "",
            f"{blocks([shared])} held by others too" if shared else "",
        ]
        return f"gives back {blocks(event.blocks)}{why}{when}: " + "; ".join(filter(None, parts))

    # -- others, as far as they concern it -----------------------------------------------------

    def _others(self, t: float, event: Event) -> None:
        if self._began_at is None:
            return
        match event:
            case Allocated():
                if hit := [b for group in event.hit for b in group if b in self._mine]:
                    self._say(t, f"{event.req} finds its {blocks([hit])}")
                for lost in event.evicted:
                    if lost.block in self._mine:
                        text = f"{event.req} takes block {lost.block} for content of its own"
                        self._say(
                            t, f"{text}: {self._mine[lost.block]} can't be found here any more"
                        )
            case GaveUp() if event.by == self.req:
                self._say(t, f"preempts {event.req} to get its blocks")
            case Forgotten():
                if lost_ids := [block for block in event.blocks if block in self._mine]:
                    told = blocks([lost_ids])
                    self._say(t, f"its {told} can't be found any more: {_FORGOTTEN[event.why]}")
            case _:
                pass

    # -- whose content is where ----------------------------------------------------------------

    def _keep_books(self, event: Event) -> None:
        match event:
            case Waits(why="blocks"):
                self._lacked[event.req] = event
            case Allocated():
                for lost in event.evicted:
                    self._owner.pop(lost.block, None)
                    self._mine.pop(lost.block, None)
            case Published():
                size = self._block_sizes[event.group]
                for i, block in enumerate(event.blocks, event.first_block):
                    self._owner[block] = event.req
                    self._mine.pop(block, None)
                    if event.req == self.req:
                        self._mine[block] = span(i * size, size)
            case Forgotten():
                for block in event.blocks:
                    self._owner.pop(block, None)
                    self._mine.pop(block, None)
            case Ended():
                self._lacked.pop(event.req, None)
            case _:
                pass

    def _of_group(self, group: int, ids: tuple[int, ...]) -> Tables:
        return tuple(ids if i == group else () for i in range(len(self._block_sizes)))


_FORGOTTEN = {
    "withdrawn": "the step that wrote them failed",
    "evicted": "somebody asked for that",
    "reset": "the whole cache was reset",
}


def _arrives(event: Arrived) -> str:
    others = f"{event.running} run and {event.waiting} wait"
    priority = f", priority {event.priority}" if event.priority else ""
    tokens = f"{count(event.prompt_tokens, 'token')}, at most {event.max_tokens} with its output"
    return f"arrives: {tokens}{priority}; {others}"


def _waits(event: Waits) -> str:
    needs = f"{count(event.needed, 'block')} {'is' if event.needed == 1 else 'are'} needed"
    free = f"{event.free} are free"
    kept = f", {event.kept} of them kept for others" if event.kept else ""
    match event.why:
        case "blocks":
            return f"waits for blocks: {needs}, {free}{kept}"
        case "room":
            return f"waits for room: {needs} before it decodes, {free}{kept}"
        case "fence":
            return "waits for the end of a step: the blocks that it needs are still named by one"
        case "reader":
            return "waits for a peer: it reads the blocks of the last of those that run"
        case "remote":
            return "waits for the remote cache: what there is elsewhere is not known yet"
