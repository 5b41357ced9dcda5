"""A plugin for runs that only ask whether a test fails: the first example that does is enough."""

from hypothesis import Phase, settings

settings.register_profile(
    "mutants",
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
