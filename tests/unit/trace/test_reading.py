"""Trace files, and files that are none."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvdist.errors import FormatError, UnknownRequest
from kvdist.trace import reading
from kvdist.trace.events import Arrived, Began, Ended, Entry, Event
from kvdist.trace.reading import TraceFiles

Write = Callable[..., Path]


def began(run: str = "one") -> Began:
    return Began(run, 11, (4,), ("FullAttention",))


def line(event: Event) -> bytes:
    return msgspec.json.encode(Entry(1.5, event)) + b"\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*events: Event | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(e if isinstance(e, bytes) else line(e) for e in events))
        return path

    return write


def test_what_was_written_is_read(write: Write) -> None:
    events = [began(), Arrived("a-1", 3, 9), Ended("a-1", "length", 6)]
    files = TraceFiles(write(*events))
    assert [entry.event for entry in files] == events
    assert [entry.event for entry in files] == events  # as often as one likes
    assert not files.is_cut


def test_the_file_before_comes_first(write: Write) -> None:
    write(began(), Arrived("a-1", 3, 9), name="trace.1")
    path = write(began(), Ended("a-1", "length", 6))
    assert len(list(TraceFiles(path).run_of("a-1"))) == 4


def test_a_request_by_its_id_or_by_its_only_name(write: Write) -> None:
    files = TraceFiles(
        write(began(), *(Arrived(name, 1, 2) for name in ("a-1", "b-2", "b-3", "b-b-4")))
    )
    assert files.find("a-1") == files.find("a") == "a-1"
    assert files.find("b-2") == "b-2"
    assert files.find("b-b") == "b-b-4"
    assert files.find("cmpl-a") == files.find("chatcmpl-a") == "a-1"
    with pytest.raises(UnknownRequest, match="b is several sequences: b-2, b-3"):
        files.find("b")


def test_an_unknown_request_hears_which_there_are(write: Write) -> None:
    path = write(began(), *(Arrived(f"a-{i}", 1, 2) for i in range(7)))
    with pytest.raises(UnknownRequest, match=r"no request z; it has a-0, a-1, .* a-4 and 2 more"):
        TraceFiles(path).find("z")
    with pytest.raises(UnknownRequest, match=r"no request z$"):
        TraceFiles(write(began())).find("z")


def test_of_several_runs_the_latest_that_has_it(write: Write) -> None:
    path = write(
        began("one"),
        Arrived("a-1", 1, 2),
        began("two"),
        Arrived("a-1", 3, 4),
        Arrived("b-2", 3, 4),
        began("three"),
        Arrived("c-1", 5, 6),
    )
    found = [entry.event for entry in TraceFiles(path).run_of("a-1")]
    assert found == [began("two"), Arrived("a-1", 3, 4), Arrived("b-2", 3, 4)]


def test_a_last_line_that_is_cut_off_is_left_out(write: Write) -> None:
    files = TraceFiles(write(began(), Arrived("a-1", 3, 9), line(began())[:20]))
    assert len(list(files)) == 2
    assert files.is_cut


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([b""], "trace: it is empty"),
        ([b"\n"], "trace:1: not a line of a trace"),
        ([b"\x00\xff\x1f\x8b garbage"], "trace:1: not a line of a trace"),
        ([b'{"t":1.0}\n'], "trace:1: not a line of a trace: .*event"),
        ([b'{"t":1.0,"event":{"event":"sung"}}\n'], "trace:1: not a line of a trace"),
        ([b"[" * 100_000 + b"\n"], "trace:1: not a line of a trace"),
        ([line(Arrived("a", 1, 2))], "trace:1: a trace begins with `began`"),
        ([line(began()), b"nonsense\n", line(began())], "trace:2: not a line of a trace"),
        ([line(began()), line(began())[:20] + b"\n"], "trace:2: not a line of a trace"),
    ],
)
def test_what_is_no_trace(write: Write, content: list[bytes], complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        list(TraceFiles(write(*content)))


def test_a_line_without_end(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 50)
    with pytest.raises(FormatError, match="trace:1: longer than any line"):
        list(TraceFiles(write(b"x" * 1000)))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        list(TraceFiles(tmp_path / "nothing"))
    with pytest.raises(FormatError, match="directory"):
        list(TraceFiles(tmp_path))
