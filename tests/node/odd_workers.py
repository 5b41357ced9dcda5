"""Worker processes of several kinds: `python -m tests.node.odd_workers KIND DESCRIPTOR`."""

import socket
import sys
import time

from kvdist.errors import ConfigError
from kvdist.node.roles import Runner
from kvdist.node.worker_host import Progress, serve
from kvdist.node.worker_wire import HEAD, MAX_MESSAGE_BYTES, Capacity, Done, Group, Ready, frame
from kvdist.sched.plan import StepPlan, StepResult
from tests.node.small import CONFIG, stub


class _Slow:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(0.05)
        return self._runner.execute(plan)


class _Failing:
    def execute(self, plan: StepPlan) -> StepResult:
        raise RuntimeError("out of luck")


class _OtherStep:
    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step + 1)


def build(kind: str, progress: Progress) -> tuple[Runner, Capacity]:
    capacity = Capacity.of(CONFIG)
    match kind:
        case "good":
            progress("weights", 0.5)
            progress("weights", 1.0)
            return stub(), capacity
        case "slow":
            return _Slow(stub()), capacity
        case "failing":
            return _Failing(), capacity
        case "other-step":
            return _OtherStep(), capacity
        case _:
            raise ConfigError("no such model")


def main(kind: str, descriptor: int) -> None:
    link = socket.socket(fileno=descriptor)
    ready = Capacity.of(CONFIG).ready()
    match kind:
        case "mute":
            sys.exit(3)
        case "garbage":
            link.sendall(HEAD.pack(5) + b"\xc1 bad")
        case "huge":
            link.sendall(HEAD.pack(MAX_MESSAGE_BYTES + 1))
        case "hasty":
            link.sendall(frame(Done(StepResult(1))))
        case "unknown-group":
            link.sendall(frame(Ready(9, (Group("Nonsense", {}, ()),), 64, "")))
        case "bad-group":
            group = Group("FullAttentionSpec", {"block_size": -1}, ())
            link.sendall(frame(Ready(9, (group,), 64, "")))
        case "extra-answer":
            link.sendall(frame(ready) + frame(Done(StepResult(1))))
        case _:
            serve(link, lambda progress: build(kind, progress))
            return
    while link.recv(1 << 16):
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
