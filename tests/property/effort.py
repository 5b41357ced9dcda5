"""How many examples a property test gets, and how long it may take.

The `ci` profile runs what is asked for; `long` runs fifty times as much.
"""

from hypothesis import HealthCheck, settings

_CI_EXAMPLES = 100  # hypothesis' own default, which the ci profile leaves as it is


def effort(examples: int, steps: int = 50) -> settings:
    """Settings of one state machine: `examples` runs of at most `steps` operations."""
    scale = settings.default.max_examples / _CI_EXAMPLES if settings.default else 1.0
    return settings(
        max_examples=max(1, round(examples * scale)),
        stateful_step_count=steps,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
