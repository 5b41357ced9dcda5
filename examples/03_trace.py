"""Two requests that share a long prefix, and the trace that they leave.

A node without a model or a network: scheduler, block manager, and a stub that computes. The pool is
small, so the second request gets blocks of the first back in two ways: as a hit, and as room. What
a node writes with `kvdist serve --trace-file FILE`, and `kvdist trace` reads, is the same.
"""

from kvdist.cache import FullAttentionSpec, KVCacheConfig
from kvdist.cache.traced import TracedKVCacheManager
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SamplingParams
from kvdist.sched.tracing import began
from kvdist.sim.stub_runner import StubRunner
from kvdist.trace.events import Entry, Event
from kvdist.trace.explain import explain
from kvdist.trace.lines import step_lines
from kvdist.trace.recorder import Recorder
from kvdist.trace.story import story

entries: list[Entry] = []


def sink(event: Event) -> None:
    """A node stamps with its clock, this with a count: the same in every run."""
    entries.append(Entry(len(entries) / 1000, event))


config = KVCacheConfig.single(
    FullAttentionSpec(block_size=16), num_blocks=1 + 12, max_model_len=192
)
recorder = Recorder(sink)
recorder.note(began("example", config))
settings = SchedulerConfig(max_num_batched_tokens=64, max_steps_in_flight=1)
scheduler = Scheduler(TracedKVCacheManager(config, recorder), settings, recorder=recorder)
worker = StubRunner(config, vocabulary_size=100)


def run(name: str, prompt: list[int], max_new_tokens: int) -> None:
    """From arrival to end, alone."""
    scheduler.add(name, prompt, SamplingParams(max_new_tokens=max_new_tokens))
    while plan := scheduler.schedule():
        scheduler.settle(worker.execute(plan))
    scheduler.take_outputs()


def main() -> None:
    """Run both, then tell it in three ways."""
    prefix = list(range(128))
    run("first", [*prefix, 7, 7, 7], 16)
    run("second", [*prefix, *range(8, 40)], 6)
    run("third", list(range(500, 650)), 1)
    print("\nthe document's lines\n", *step_lines(entries), sep="\n")
    for request_id in ("first-1", "second-2"):
        print(f"\nthe story of {request_id}\n", *story(entries, request_id), sep="\n")
    print("\nthe seven breakpoints\n", *explain(entries, "second-2"), sep="\n")


if __name__ == "__main__":
    main()
