"""The one line a step and request: exactly the document's format, with whole lists."""

from kvdist.trace.line import step_line


def test_the_document_s_own_line() -> None:
    line = step_line(
        7, "R1", 128, 1, [[4, 9, 2, 15, 7, 8, 11, 3, 6]], [[6]], 213, [1, 1, 1, 1, 1, 1, 1, 1]
    )
    assert line == (
        "step=7 req=R1 hit_tokens=128 scheduled=1 owned=[[4, 9, 2, 15, 7, 8, 11, 3, 6]] "
        "new=[[6]] free=213 ref(hit)=[1,1,1,1,1,1,1,1]"
    )


def test_several_groups() -> None:
    line = step_line(1, "a", 0, 5, [[1, 2], [0, 3]], [[2], []], 4, [])
    assert line == (
        "step=1 req=a hit_tokens=0 scheduled=5 owned=[[1, 2], [0, 3]] new=[[2], []] "
        "free=4 ref(hit)=[]"
    )


def test_nothing_is_left_out_of_long_lists() -> None:
    ids = list(range(2_000))
    line = step_line(1, "a", 0, 1, [ids], [ids], 0, [1] * 2_000)
    assert str([ids]) in line
    assert "..." not in line
    assert line.endswith("[" + ",".join("1" * 2_000) + "]")


def test_any_sequence_of_numbers_will_do() -> None:
    assert "owned=[[1], []] new=[[1]]" in step_line(1, "a", 0, 1, ((1,), ()), ((1,),), 0, (2,))
