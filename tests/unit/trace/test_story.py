"""What a story says of each thing that can happen, and why it happened."""

from typing import Any

import pytest

from kvdist.connector.host import Loaded, LoadFailed, LoadQuiet
from kvdist.ids import BlockId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.plan import StepResult
from kvdist.sched.sequence import Sequence
from kvdist.trace.events import Arrived, Began, Entry, Told, Waits
from kvdist.trace.story import story
from tests.make import window
from tests.model.fake_remote import FakeRemote
from tests.rig import Rig

A = [1] * 8


def rig(*specs: Any, num_blocks: int = 20, remote: FakeRemote | None = None, **more: Any) -> Rig:
    settings = SchedulerConfig(**{"max_num_batched_tokens": 16, "max_steps_in_flight": 1, **more})
    made = Rig(
        *specs, settings=settings, remote_cache=remote, num_blocks=num_blocks + 1, traced=True
    )
    if remote is not None:
        remote.model, remote.memories = made.worker.model, made.memories
    return made


def told(rig: Rig, sequence: Sequence | str) -> list[str]:
    name = sequence if isinstance(sequence, str) else sequence.request_id
    return [line[11:] for line in story(rig.entries, name)]


def only(lines: list[str], word: str) -> str:
    (line,) = [line for line in lines if word in line]
    return line


def test_a_life_alone() -> None:
    node = rig()
    (alone,) = node.add(list(range(18)), max_new_tokens=4)
    node.run_to_the_end()
    lines = story(node.entries, "client-1")
    assert lines[0].startswith("   0.0000  arrives")
    key = alone.request.block_hashes[0].hex()[:12]
    assert told(node, alone) == [
        "arrives: 18 tokens, at most 22 with its output; 0 run and 0 wait",
        "begins in step 1, nothing of its prompt is cached here: "
        f"nothing is found under the next block's key, {key}",
        "takes blocks 1-4 for 16 tokens; free blocks: 20 -> 16",
        "publishes blocks 1-4 (tokens 0-15): others can find them",
        "step 1 computes a chunk of the prompt, tokens 0-15",
        "takes block 5 for 2 tokens; free blocks: 16 -> 15",
        "step 2 computes tokens 16-17, the last of its prompt, and samples the next",
        "its first token is there",
        "step 3 computes token 18, one a step",
        "publishes block 5 (tokens 16-19): others can find them",
        "step 4 computes token 19, one a step",
        "takes block 6 for 1 token; free blocks: 15 -> 14",
        "step 5 computes token 20 and samples the next",
        "ends: length, after 4 tokens of output",
        "gives back blocks 6, 5, 4, 3, 2, 1: block 6 to the front of the free queue, without a "
        "key; blocks 5, 4, 3, 2, 1 to its end, still to be found",
    ]


def test_a_hit_says_whose_blocks_and_why_no_more() -> None:
    node = rig()
    (first,) = node.add([*A, 2, 2], max_new_tokens=2)
    node.run_to_the_end()
    (second,) = node.add([*A, 3, 3, 3, 3, 3], max_new_tokens=6)
    node.step()
    (third,) = node.add(A, max_new_tokens=2)
    node.run_to_the_end()
    hit = only(told(node, second), "hit")
    assert "a hit of 8 tokens here: blocks 1, 2 of client-1, 2 of them idle" in hit
    assert "nothing is found under the next block's key" in hit
    hit = only(told(node, third), "hit of 4")
    assert "0 of them idle" in hit
    assert "at most 7 tokens, the last is computed for its logits" in hit
    assert only(told(node, first), "client-2 finds") == "client-2 finds its blocks 1, 2"
    shared = only(told(node, third), "gives back")
    assert "block 1 held by others too" in shared


def test_what_fills_no_block_is_not_looked_for() -> None:
    node = rig()
    node.add(A, max_new_tokens=1)
    node.run_to_the_end()
    (second,) = node.add([*A, 3, 3], max_new_tokens=1)
    node.run_to_the_end()
    assert "no more, since what follows fills no block" in only(told(node, second), "hit")


def test_blocks_that_others_take_later() -> None:
    node = rig(num_blocks=6)
    (first,) = node.add(A, max_new_tokens=1)
    node.run_to_the_end()
    (second,) = node.add([5] * 18, max_new_tokens=1)
    node.run_to_the_end()
    node.manager.evict_blocks([2])  # which is the first one's no more
    taken = "client-2 takes block 2 for content of its own: tokens 4-7 can't be found here any more"
    assert taken in told(node, first)
    assert not any("somebody asked for that" in line for line in told(node, first))
    assert (
        only(told(node, second), "block 2 held")
        == "block 2 held client-1's content, which nobody can find any more"
    )


def test_a_preemption_says_for_whom_and_for_want_of_what() -> None:
    node = rig(num_blocks=6)
    (first,) = node.add([1] * 7, max_new_tokens=14)
    (second,) = node.add([2] * 7, max_new_tokens=14)
    node.run_to_the_end()
    assert node.scheduler.stats.num_preemptions
    lines = told(node, second)
    line = only(lines, "is preempted")
    assert line == (
        "is preempted for client-1, which needs 1 block, 0 are free: "
        "it is the last of those that run"
    )
    assert lines[lines.index(line) + 1].startswith("gives back blocks")
    again = [line for line in lines if line.startswith("begins in step")]
    assert len(again) == 2
    assert "preempts client-2 to get its blocks" in told(node, first)
    assert "of itself" in again[1]  # its own blocks, as far as nobody took them meanwhile


def test_one_that_preempts_itself() -> None:
    node = rig(num_blocks=4)
    node.add([1], max_new_tokens=12)
    (second,) = node.add([2] * 2, max_new_tokens=12)
    node.run_to_the_end()
    preempted = [line for line in told(node, second) if "is preempted" in line]
    assert preempted[0].startswith("is preempted: it needs 1 block, 0 are free")


@pytest.mark.parametrize("why", ["", "the client is gone"])
def test_an_abort_says_why_and_what_its_blocks_wait_for(why: str) -> None:
    node = rig()
    (sequence,) = node.add(list(range(10)), max_new_tokens=9)
    node.plan()
    node.scheduler.abort(sequence.request_id, why)
    node.hear(node.scheduler.take_outputs())
    node.run_to_the_end()
    *_, end, given_back = told(node, sequence)
    assert end == f"ends: aborted{', ' * bool(why)}{why}, after 0 tokens of output"
    assert given_back.startswith("gives back blocks 3, 2, 1 when step 1 is over: ")


def test_an_abort_in_the_queue() -> None:
    node = rig(max_num_seqs=1)
    node.add([1] * 5)
    node.step()
    (waiting,) = node.add([2] * 5)
    node.abort(waiting)
    node.run_to_the_end()
    assert told(node, waiting) == [
        "arrives: 5 tokens, at most 13 with its output; 1 run and 0 wait",
        "ends: aborted, after 0 tokens of output",
    ]


def test_room_that_others_were_promised() -> None:
    remote = FakeRemote(offers={"client-1": 16, "client-2": 0})
    node = rig(num_blocks=8, remote=remote)
    node.add([1] * 20, max_new_tokens=4)
    node.step()
    (second,) = node.add([2] * 12)
    node.step()
    remote.land(remote.loads.pop("client-1"))
    node.moved(Loaded("client-1"))
    node.run_to_the_end()
    assert only(told(node, second), "waits") == (
        "waits for room: 4 blocks are needed before it decodes, 4 are free, 2 of them kept for "
        "others"
    )


def test_a_step_that_failed() -> None:
    node = rig()
    (sequence,) = node.add(list(range(10)), max_new_tokens=2)
    node.plan()
    node.fail_oldest()
    node.run_to_the_end()
    lines = told(node, sequence)
    assert "has to be computed anew: step 1 failed" in lines
    assert "its blocks 1, 2 can't be found any more: the step that wrote them failed" in lines


def test_an_answer_to_no_question() -> None:
    node = rig()
    (sequence,) = node.add(list(range(10)), max_new_tokens=2)
    plan = node.plan()
    assert plan is not None
    node.worker.execute(node.plans.pop())
    node.hear(node.scheduler.settle(StepResult(plan.step)))
    node.run_to_the_end()
    line = only(told(node, sequence), "anew")
    assert line.endswith("the worker's answer was none to its question")


def test_k_v_from_elsewhere() -> None:
    remote = FakeRemote(offers={"client-1": 8})
    node = rig(remote=remote)
    (sequence,) = node.add([*A, 5, 6], max_new_tokens=1)
    node.step()
    node.step()
    remote.land(remote.loads.pop("client-1"))
    node.moved(Loaded("client-1"))
    node.run_to_the_end()
    lines = told(node, sequence)
    assert "takes blocks 1, 2 for 8 tokens from elsewhere, unpublished till then" in lines
    there = lines.index("what came from elsewhere is there: 8 tokens in all")
    assert lines[there - 1] == "publishes blocks 1, 2 (tokens 0-7): others can find them"
    assert not any("computes tokens 0" in line for line in lines)


@pytest.mark.parametrize("again", [True, False])
def test_k_v_that_did_not_come(again: bool) -> None:
    remote = FakeRemote(offers={"client-1": 8})
    node = rig(remote=remote)
    (sequence,) = node.add([*A, 5, 6], max_new_tokens=1)
    node.step()
    blocks = remote.loads.pop("client-1").block_ids(node.worker.model)
    remote.offers["client-1"] = 0
    node.moved(LoadFailed("client-1", "the link was cut", again))
    node.moved(LoadQuiet("client-1", [BlockId(block) for block in blocks]))
    node.run_to_the_end()
    lines = told(node, sequence)
    line = only(lines, "the link was cut; ")
    assert line.endswith("it waits again" if again else "that is its end")
    status = "length" if again else "error, the link was cut"
    assert only(lines, "ends: ").startswith(f"ends: {status}, after")


def test_a_remote_cache_that_has_no_answer_yet() -> None:
    remote = FakeRemote(offers={"client-1": None})
    node = rig(remote=remote)
    (sequence,) = node.add(A, max_new_tokens=1)
    for _ in range(3):
        node.plan()
    remote.offers["client-1"] = 0
    node.run_to_the_end()
    assert only(told(node, sequence), "waits for the remote cache")


def test_a_peer_that_reads() -> None:
    remote = FakeRemote()
    node = rig(num_blocks=6, remote=remote)
    (first,) = node.add([1] * 7, max_new_tokens=14)
    node.add([2] * 7, max_new_tokens=14)
    remote.reading.add("client-2")
    for _ in range(30):
        node.step()
    remote.reading.clear()
    node.run_to_the_end()
    assert only(told(node, first), "waits for a peer")


def test_behind_a_window() -> None:
    node = rig(window(4))
    (sequence,) = node.add([1] * 16, max_new_tokens=4)
    node.run_to_the_end()
    assert any("behind its window" in line for line in told(node, sequence))


def test_a_file_that_has_lost_the_beginning() -> None:
    entries = [
        Entry(10.0, Began("run", 11, (4,), ("FullAttention",))),
        Entry(12.0, Told("a-1")),
        Entry(12.5, Waits("a-1", "fence")),
    ]
    first, *rest = story(entries, "a-1")
    assert first == "   0.0000  what was before this is not in the file any more"
    assert rest[0] == "   0.0000  its first token is there"
    assert rest[1].startswith("   0.5000  waits for the end of a step")


def test_priority_is_told_where_there_is_one() -> None:
    entries = [Entry(1.0, Arrived("a-1", 3, 4, 7, 1, 2))]
    assert "priority 7; 1 run and 2 wait" in story(entries, "a-1")[0]
