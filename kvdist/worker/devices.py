"""What PyTorch can use on this machine.

Owns:   nothing.
Knows nothing of: models.
"""

import os

import torch


def devices() -> list[str]:
    """One line for each device, its name as `--device` wants it first."""
    threads = f"{torch.get_num_threads()} threads, {os.cpu_count()} processors"
    found = [f"cpu: {threads}"]
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        memory = properties.total_memory / (1 << 30)
        found.append(f"cuda:{i}: {properties.name}, {memory:.0f} GiB")
    return found
