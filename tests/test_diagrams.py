"""The page with the protocol's state machines says what the tables say."""

from tools.diagrams import PAGE, page


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python tools/diagrams.py"
