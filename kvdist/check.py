"""How much kvdist checks itself while it runs.

Owns:   the level.
Knows nothing of: everything else (the core may not read the environment, so hosts set it).

    0  production: contracts of public calls only
    1  also a whole audit whenever a host is idle and at its end
    2  also a whole audit after every public change (O(pool) each: tests and short runs)
"""

from typing import Literal

Level = Literal[0, 1, 2]

level: Level = 0
