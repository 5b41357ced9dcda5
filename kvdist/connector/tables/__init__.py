"""The state machines of the transfer protocol, as tables.

Owns:   nothing.
Knows nothing of: who drives them: the halves do (`lender`, `borrower`, `server`, `fetcher`).
"""
