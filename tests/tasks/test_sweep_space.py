"""The draw of a sweep covers ranges and lists; errors name the option."""

import math
from collections import Counter
from itertools import product

import pytest

from transom.errors import ConfigError
from transom.tasks.sweep_space import Axis, draw_configurations, parse_axes

RATE = Axis("training.learning_rate", (), 1e-4, 1e-2)
WIDTH = Axis("model.d_ff", (), 16, 64, is_integer=True)
EVEN = Axis("model.dropout", (), 0.0, 0.4)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 64])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_part_of_a_range_has_one_configuration(n: int, seed: int) -> None:
    found = draw_configurations([RATE, EVEN], n, seed)
    rates, dropouts = ([float(each.values[axis.field]) for each in found] for axis in (RATE, EVEN))
    slack = 1e-3 * n  # values have four digits
    assert len(found) == n and [each.number for each in found] == list(range(n))
    for i, fraction in enumerate(sorted(math.log(rate / 1e-4) / math.log(100) for rate in rates)):
        assert i - slack <= fraction * n <= i + 1 + slack, "logarithmic"
    for i, fraction in enumerate(sorted(dropout / 0.4 for dropout in dropouts)):
        assert i - slack <= fraction * n <= i + 1 + slack, "even: it begins at 0"


def test_the_same_seed_draws_the_same_and_another_seed_others() -> None:
    draws = [draw_configurations([RATE, WIDTH], 8, seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("n", [1, 4, 49, 200])
def test_whole_numbers_stay_whole_and_inside(n: int) -> None:
    found = {each.values["model.d_ff"] for each in draw_configurations([WIDTH], n, 1)}
    assert all(value.isdecimal() and 16 <= int(value) <= 64 for value in found)
    assert len(found) == min(n, 49) or n == 49, "a value per part, as far as there are values"
    if n == 200:
        assert found == {str(value) for value in range(16, 65)}, "both ends can be drawn"


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (2, 4), (3, 2), (4, 6), (2, 2, 2), (2, 3, 4), (2, 2, 3, 2)])
def test_lists_are_taken_in_turn_and_no_combination_repeats_before_all_have_occurred(sizes: tuple[int, ...]) -> None:
    axes = [Axis(f"model.f{place}", tuple(map(str, range(size)))) for place, size in enumerate(sizes)]
    n_all = math.prod(sizes)
    for n in range(1, n_all + 1):
        found = draw_configurations(axes, n, 1)
        assert len(found) == n, "distinct"
        for axis in axes:
            counts = Counter(each.values[axis.field] for each in found)
            assert max(counts.values()) - min(counts[value] for value in axis.values) <= 1
    every = {tuple(each.values.values()) for each in draw_configurations(axes, 3 * n_all, 1)}
    assert every == set(product(*(axis.values for axis in axes)))


@pytest.mark.parametrize(
    ("axis", "is_log"), [(RATE, True), (EVEN, False), (WIDTH, False), (Axis("f", (), 1, 10), True), (Axis("f", (), -1, 10), False)]
)
def test_a_range_is_logarithmic_if_it_is_positive_and_wide(axis: Axis, is_log: bool) -> None:
    assert axis.is_log == is_log
    ends = float(axis.at(0.0)), float(axis.at(1.0))
    assert ends == (axis.low, axis.high)
    middle = math.sqrt(axis.low * axis.high) if is_log else (axis.low + axis.high + axis.is_integer) / 2
    assert float(axis.at(0.5)) == pytest.approx(middle, rel=1e-3, abs=0.5 * axis.is_integer)


def test_values_are_parsed_by_the_type_of_the_field() -> None:
    over = ["training.learning_rate=1e-4..1e-2", "model.d_ff=16..64", "model.dropout=0.0, 0.1", "model.norm=rmsnorm,{ kind = 'layernorm' }"]
    rate, width, dropout, norm = parse_axes("copy", [], over, [])
    assert (rate, width) == (RATE, WIDTH) and dropout == Axis("model.dropout", ("0.0", "0.1"))
    assert norm.values == ("rmsnorm", "{ kind = 'layernorm' }")
    (decay,) = parse_axes("copy", ["training.optimizer=adamw"], ["training.optimizer.weight_decay=0..1"], [])
    assert not decay.is_integer, "the field is no whole number, although the ends are"


def test_equal_values_of_a_list_count_once_and_one_is_allowed_beside_others() -> None:
    rate, dropout = parse_axes("copy", [], ["training.learning_rate=1e-3,0.001,2e-3", "model.dropout=0.1"], [])
    assert rate.values == ("1e-3", "2e-3") and dropout.values == ("0.1",)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (
            ["training.lerning_rate=1..2"],
            "--over training.lerning_rate=1..2: unknown field training.lerning_rate; did you mean training.le",
        ),
        (["model.norm=1..2"], "--over model.norm=1..2: model.norm: expected a table, found 1"),
        (["training.schedule=cosine..wsd"], "expected a field that is a number and two numbers for a range, found others"),
        (["model.d_ff=16..16.5"], "--over model.d_ff=16..16.5: model.d_ff: expected a whole number, found 16.5"),
        (["model.dropout=0..inf"], "--over model.dropout=0..inf: model.dropout: expected a "),
        (["training.learning_rate=1e-3..0.001"], "expected a range between two different numbers, found 1e-3 twice; change one of them"),
        (["training.learning_rate=.."], "--over training.learning_rate=..: expected FIELD=LOW..HIGH or FIELD=A,B,C, found neither; write "),
        (["training.learning_rate=1e-3.."], "expected FIELD=LOW..HIGH or FIELD=A,B,C, found neither; write training.learning_rate=1e-4"),
        (["training.learning_rate=1e-3"], "=1e-3: expected at least two different values to compare, found one; add values as in FIELD=A"),
        (["training.learning_rate=1e-3,", "model.dropout=0.1, 1e-1"], "expected at least two different values to compare, found one"),
        (["training.learning_rate=1e-3,0.001"], "expected at least two different values to compare, found one"),
        (["modl.dropout=1,2"], "--over modl.dropout=1,2: unknown field modl; did you mean model?"),
        (["foo=1,2"], "--over foo=1,2: unknown field foo; fields of a recipe are task, data, model, training, parallel"),
        (["model=1,2"], "--over model=1,2: expected a field, found the table model; choose one of its fields: model.kind, model."),
        (["model=1..2"], "--over model=1..2: expected a field, found the table model; choose one of its fields: model.kind, model."),
        (
            ["model.d_model=32..64"],
            "--over model.d_model=32..64: model: d_model 33 is not a multiple of n_heads 4; change one of them or set d_head; or list the"
            " numbers that fit, as in --over model.d_model=32,64",
        ),
        (["training.learning_rate=1e-2..1e-4"], "expected a range from a lower to a higher number, found 1e-2 and 1e-4; exchange them"),
        (["model.dropout=0,2"], "--over model.dropout=0,2: model.dropout: expected a number less than 1, found 2"),
        (["model.dropout"], "--over model.dropout: expected FIELD=LOW..HIGH or FIELD=A,B,C, found neither"),
        (["model.dropout= , "], "expected FIELD=LOW..HIGH or FIELD=A,B,C, found neither"),
        (["=1,2"], "expected FIELD=LOW..HIGH or FIELD=A,B,C, found neither"),
        (["data.root=a,b"], "--over data.root=a,b: expected a field of model or training, found one that all runs share"),
        (["training.seed=1,2"], "--over training.seed=1,2: expected a field of model or training, found one that all runs share"),
        (["model.dropout=0,0.1"] * 2, "expected each field once, found model.dropout twice"),
    ],
)
def test_bad_input_is_refused_in_one_line(over: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_axes("copy", [], over, ["training.seed"])
    assert message in str(error.value) and "\n" not in str(error.value) and "--set model" not in str(error.value)
