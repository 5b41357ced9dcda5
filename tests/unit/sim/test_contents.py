"""Contents are functions of tokens, and every cell that is read decides the next token."""

from kvdist.sim.contents import GroupModel, ModelContents, chain
from tests.make import chunked, cross, full, make_config, mamba, window


def group(spec: object) -> GroupModel:
    return GroupModel(make_config(spec, enable_caching=False), 0)  # type: ignore[arg-type]


def test_a_link_stands_for_all_tokens_before() -> None:
    links = chain([1, 2, 3])
    assert chain([1, 2]) == links[:2]
    assert chain([3], links[1]) == links[2:]
    assert chain([2, 1, 3])[2] != links[2]


def test_what_each_kind_reads() -> None:
    reads = {
        "full": [group(full()).first_read(p) for p in (0, 9)],
        "window": [group(window(4)).first_read(p) for p in (0, 9)],
        "chunked": [group(chunked(8)).first_read(p) for p in (0, 7, 8, 9)],
        "state": [group(mamba()).first_read(p) for p in (0, 9)],
    }
    assert reads == {
        "full": [0, 0],
        "window": [0, 6],
        "chunked": [0, 0, 8, 8],
        "state": [0, 9],
    }


def test_cells_differ_by_group_head_and_position() -> None:
    config = make_config(full(), window(4))
    cells = [
        cell
        for index in (0, 1)
        for head in (0, 1)
        for cell in GroupModel(config, index).cells(chain([1, 1, 1]), head)
    ]
    assert len(set(cells)) == 12


def test_perfect_tokens_go_on_from_their_own() -> None:
    model = ModelContents(make_config(full(), window(4), mamba(), chunked(8)), 2)
    tokens = model.perfect_tokens([1, 2, 3], 6)
    assert model.perfect_tokens([1, 2, 3, *tokens[:2]], 4) == tokens[2:]
    assert model.perfect_tokens([1, 2, 4], 1) != tokens[:1]


def test_the_encoders_tokens_count() -> None:
    model = ModelContents(make_config(full(), cross(), enable_caching=False))
    assert model.perfect_tokens([1], 2, [1, 2]) != model.perfect_tokens([1], 2, [1, 3])
