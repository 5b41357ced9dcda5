"""`kvdist trace`: the three ways to read a trace, and files that are none."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from kvdist.cli.main import app
from kvdist.sched.budget import SchedulerConfig
from tests.rig import Rig


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two requests that share a prefix."""
    settings = SchedulerConfig(max_num_batched_tokens=16, max_steps_in_flight=1)
    node = Rig(settings=settings, num_blocks=11, traced=True)
    node.add(list(range(1, 16)), max_new_tokens=3)
    node.run_to_the_end()
    node.add([*range(1, 13), 90, 91, 92], max_new_tokens=1)
    node.run_to_the_end()
    path = tmp_path_factory.mktemp("trace") / "trace"
    lines = [msgspec.json.encode(entry) for entry in node.entries]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def kvdist(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def test_lines(file: Path) -> None:
    result = kvdist("lines", file)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "step=1 req=client-1 hit_tokens=0 scheduled=15 owned=[[1, 2, 3, 4]] new=[[1, 2, 3, 4]] "
        "free=6 ref(hit)=[]",
        "step=2 req=client-1 hit_tokens=0 scheduled=1 owned=[[1, 2, 3, 4]] new=[[]] free=6 "
        "ref(hit)=[]",
        "step=3 req=client-1 hit_tokens=0 scheduled=1 owned=[[1, 2, 3, 4, 5]] new=[[5]] free=5 "
        "ref(hit)=[]",
        "step=4 req=client-2 hit_tokens=12 scheduled=3 owned=[[1, 2, 3, 5]] new=[[5]] free=6 "
        "ref(hit)=[1,1,1]",
    ]


def test_story(file: Path) -> None:
    result = kvdist("story", "client-2", "--file", file)
    assert result.exit_code == 0
    first, hit, *_, last = result.output.splitlines()
    assert first.startswith("   0.0000  arrives: 15 tokens")
    assert "a hit of 12 tokens here: blocks 1-3 of client-1" in hit
    assert "gives back blocks 5, 3, 2, 1" in last


def test_explain(file: Path) -> None:
    result = kvdist("explain", "client-2", "--file", file)
    assert result.exit_code == 0
    assert [line[:1] for line in result.output.splitlines() if line[:1].isdigit()] == list(
        "1234567"
    )
    assert "target 4, owned 0, hit 3, evictable hits 3" in result.output


def test_the_environment_can_name_the_file(file: Path) -> None:
    arguments, env = ["trace", "story", "client-1"], {"KVDIST_TRACE_FILE": str(file)}
    assert "arrives" in CliRunner().invoke(app, arguments, env=env).output


def one_line(result: Result) -> str:
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", ["story", "explain"])
def test_an_unknown_request(file: Path, command: str) -> None:
    result = kvdist(command, "nobody", "--file", file)
    assert one_line(result) == f"kvdist: {file}: no request nobody; it has client-1, client-2"
    assert not result.stdout


def test_a_name_of_several(file: Path) -> None:
    assert "client is several sequences: client-1, client-2" in one_line(
        kvdist("story", "client", "--file", file)
    )


COMMANDS: list[Callable[[Path], Result]] = [
    lambda path: kvdist("lines", path),
    lambda path: kvdist("story", "client-1", "--file", path),
    lambda path: kvdist("explain", "client-1", "--file", path),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02", b"step=7 req=R1\n", b'{"t": 1}\n'])
def test_garbage(tmp_path: Path, command: Callable[[Path], Result], content: bytes) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(content)
    result = command(path)
    assert one_line(result).startswith(f"kvdist: {path}:")
    assert not result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_no_file(tmp_path: Path, command: Callable[[Path], Result]) -> None:
    path = tmp_path / "nothing"
    assert one_line(command(path)) == f"kvdist: {path}: No such file or directory"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_was_cut_off_tells_what_it_has(
    tmp_path: Path, file: Path, command: Callable[[Path], Result]
) -> None:
    path = tmp_path / "cut"
    path.write_bytes(file.read_bytes()[:-9])
    result = command(path)
    assert one_line(result) == f"kvdist: {path}: cut off in the middle of its last line"
    assert result.stdout


def test_without_a_file() -> None:
    assert kvdist("story", "client-1").exit_code == 2
