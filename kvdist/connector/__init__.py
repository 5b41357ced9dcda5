"""Moves blocks between nodes: leases, pulls, and who may read what until when (docs/protocol.md).

Two halves, events in and effects out: `SchedulerHalf` in a node process, `WorkerHalf` in a worker.
They know no sockets, clocks or tensors, and serve any scheduler that plays the roles of `host`.

Owns:   nothing.
Knows nothing of: transports, tensors, who schedules.
"""
