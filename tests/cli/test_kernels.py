"""``transom kernels``: the table, and the paths of a run's layers."""

import pytest

from tests.cli.conftest import Call, Trained
from transom.layers.dispatch import KERNEL_TABLE, kernels_of


def test_the_table_for_people_and_as_json(transom: Call) -> None:
    page, value = transom("kernels"), transom("kernels", "--json").json
    assert page.code == 0 and "attention" in page.out.splitlines()
    assert {"operation", "path", "when", "reason", "error", "missing"} == set(value[0])
    assert {row["operation"] for row in value if row["path"] == "reference"} >= {"attention", "rms_norm", "linear_cross_entropy"}
    for row in value:
        assert f"  {row['path']}: " in page.out


@pytest.mark.kernels
def test_each_layer_of_a_run_is_listed_with_its_path(transom: Call, trained: Trained) -> None:
    before = {name: list(rows) for name, rows in KERNEL_TABLE.items()}
    asked = ("kernels", trained.folder, "--precision", "fp32", "--json")
    instruction_tuned, learning = transom(*asked).json, transom(*asked, "--training").json
    paths = [{(each["layer"], each["operation"]): each["path"] for each in found} for found in (instruction_tuned, learning)]
    assert [found["decoder.blocks.0.attn", "attention"] for found in paths] == ["fused", "short"]
    assert ("decoder.blocks.0", "keyed_dropout") not in paths[0]
    assert any(operation == "keyed_dropout" for _, operation in paths[1])
    assert paths[0]["decoder", "decoder_step"] == "reference"  # of heads that are too narrow
    assert {name: list(rows) for name, rows in KERNEL_TABLE.items()} == before and kernels_of("relu")
    lines = transom("kernels", trained.folder).out.splitlines()
    assert any(line.startswith("decoder.blocks.0.attn  attention") for line in lines)
    assert any("multiples of 16, found d_head 8" in line for line in lines)


def test_a_training_needs_a_run(transom: Call) -> None:
    assert "--training: expected a RUN, found none" in transom("kernels", "--training").error
