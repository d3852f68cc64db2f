"""``transom rehearse``: the tables, the JSON, the picture, its advice and its errors."""

from pathlib import Path

import pytest

from tests.cli.conftest import Call

TRIED = ["gpt2", "--vocab-size", "50", "--set", "model.d_model=16", "--set", "model.n_heads=2", "--set", "model.n_layers=4"]
SMALL = [*TRIED, "--no-steps"]
H100 = ["--context", "16", "--hardware", "h100", "--precision", "fp32"]
MESH = ["--mesh", "data=4,tensor=2,pipeline=2", "--micro-batches", "4"]


def test_the_tables_fit_a_terminal_and_say_what_the_json_says(transom: Call) -> None:
    page, value = transom("rehearse", *SMALL, *H100, *MESH), transom("rehearse", *SMALL, *H100, *MESH, "--json").json
    assert page.code == 0 and max(map(len, page.out.splitlines())) <= 100
    assert value["processes"] == 16 and "16 processes on 2 machines of 8 x H100 SXM" in page.out
    assert value["batch"] == 4 * 4 * value["micro_batches"]["rows"] * 16 and value["micro_batches"]["n"] == 4
    assert value["bubble"] == 1 / 5 and "1 / 5 = 20.0%" in page.out
    first, last = value["ranks"]
    assert first["blocks"] == last["blocks"] == {"decoder": 2}
    for rank in (first, last):
        memory = rank["memory"]
        in_a_step = ("weights", "validation_copy", "gradients", "optimizer", "average", "activations", "gathered")
        assert memory["peak"] == "in a step" and memory["total"] == sum(memory[name] for name in in_a_step)
        assert {each["axis"] for each in rank["collectives"]} == {"data", "tensor", "pipeline"}
        assert rank["seconds"]["micro_batch"] == pytest.approx(rank["seconds"]["compute"] + rank["seconds"]["waiting"])
    slowest = max(rank["seconds"]["micro_batch"] for rank in value["ranks"])
    assert slowest * 4 < value["seconds_per_step"] < slowest * 5.001 + max(rank["seconds"]["per_step"] for rank in value["ranks"])
    assert value["tokens_per_second"] == value["batch"] / value["seconds_per_step"]
    peak = 16 * value["cluster"]["flops"] * value["seconds_per_step"]
    assert value["model_flops_utilization"] == pytest.approx(value["flops"] / peak)
    assert value["fits"] and value["fitting_mesh"] is None and "this fits" in page.out


@pytest.mark.long
def test_steps_are_taken_and_equal_those_of_one_process(transom: Call) -> None:
    page = transom("rehearse", *TRIED, *H100, "--mesh", "shard=2,tensor=2")
    assert "building the parts of 4 ranks, without values" in page.err and "parameters in 4 processes" in page.err
    assert "built on this machine, without values: 4 parts of the model, each of the size above" in page.out
    assert "tried on this machine: 2 steps of a model of" in page.out and "in one process differ by at most" in page.out
    value = transom("rehearse", *TRIED, *H100, "--mesh", "shard=2,tensor=2", "--json")
    assert value.err == "" and (value.json["built"]["built"], value.json["built"]["distinct"]) == (4, 4)
    steps = value.json["steps"]
    assert steps["mesh"] == "shard=2,tensor=2" and steps["max_relative_difference"] <= 1e-10 and len(steps["losses"]) == 2


def test_rank_0_validates_a_whole_copy(transom: Call) -> None:
    """It has a second model, and gathers the weights for it; the other ranks only build the whole model before they keep their part."""
    first, last = transom("rehearse", *SMALL, *H100, "--mesh", "tensor=2,pipeline=2", "--micro-batches", "2", "--json").json["ranks"]
    whole = transom("rehearse", *SMALL, *H100, "--json").json["ranks"][0]["memory"]["weights"]
    assert (first["memory"]["validation_copy"], first["memory"]["validated"], first["memory"]["building"]) == (whole, whole, 2 * whole)
    assert (last["memory"]["validation_copy"], last["memory"]["validated"], last["memory"]["building"]) == (0, 0, whole)
    page = transom("rehearse", *SMALL, *H100, "--mesh", "tensor=2,pipeline=4", "--device-memory", "1kB").out
    assert "rank 0 validates alone, by a second model of" in page and ", for which it gathers" in page
    assert "no mesh fits, since rank 0 has the whole model twice when it starts" in " ".join(page.split())


def test_a_mesh_that_no_machine_can_start_is_predicted_only(transom: Call) -> None:
    mesh = ["--mesh", "data=2,tensor=16,pipeline=4", "--micro-batches", "4", "--set", "model.n_heads=16", "--set", "model.d_ff=64"]
    value = transom("rehearse", *TRIED, *H100, *mesh, "--json").json
    assert value["steps"] is None and any("no steps were taken, since data=2,tensor=16,pipeline=4 still has" in n for n in value["notes"])


def test_hardware_can_be_given(transom: Call) -> None:
    given = ["--device-flops", "1e12", "--utilization", "0.5", "--device-memory", "1GiB", "--devices-per-node", "2"]
    given += ["--intra-bandwidth", "100GB", "--inter-bandwidth", "1GB", "--context", "16", "--mesh", "data=4", "--json"]
    cluster = transom("rehearse", *SMALL, *given).json["cluster"]
    assert (cluster["flops"], cluster["utilization"], cluster["device_bytes"], cluster["devices_per_node"]) == (1e12, 0.5, 2**30, 2)
    assert cluster["intra"][0] == 1e11 and cluster["inter"][0] == 1e9


def test_a_mesh_without_memory_is_replaced_by_the_nearest_with_enough(transom: Call) -> None:
    small = [*SMALL, *H100, "--mesh", "data=4", "--device-memory"]
    value = transom("rehearse", *small, "80GiB", "--json").json
    needed = value["ranks"][0]["memory"]["total"]
    page, value = (transom("rehearse", *small, str(needed - 1), *more) for more in ((), ("--json",)))
    fitting = value.json["fitting_mesh"]
    assert not value.json["fits"] and "this does not fit: rank 0 needs" in page.out and fitting in page.out
    again = transom("rehearse", *SMALL, *H100, "--mesh", fitting, "--device-memory", str(needed - 1), "--json").json
    assert again["fits"] and again["processes"] == 4


@pytest.mark.long
def test_a_small_model_is_not_to_be_sharded(transom: Call) -> None:
    page = transom("rehearse", *SMALL, *H100, "--mesh", "shard=8")
    assert "do not shard: the model fits a device twice over, use data=8 instead; gathering its weights takes" in page.out
    assert "of collectives of shards at the same time" in " ".join(page.out.split()) and "all-gather *" in page.out
    slowly = transom("rehearse", *SMALL, "--context", "16", "--intra-bandwidth", "1MB", "--mesh", "shard=2").out
    assert "use data=2 instead; gathering its weights takes" in " ".join(slowly.split())
    assert "at the same time" not in slowly and "all-gather *" not in slowly  # a CPU sends with the cores that compute
    slow = ["--intra-bandwidth", "1000TB", "--device-flops", "1e13", "--mesh", "shard=2"]
    assert "less than FSDP2's own work per module (PyTorch issue 173680)" in " ".join(transom("rehearse", *SMALL, *H100, *slow).out.split())
    plan = transom(
        "plan", *TRIED, "--context", "16", "--gpus", "8", "--gpu-memory", "80GiB", "--shard", "full", "--flops-per-second", "1e13"
    ).out
    assert "do not shard: the model fits a device twice over, use data=8 instead; a block computes for" in " ".join(plan.split())
    large = transom("rehearse", "llama-3-8b", "--mesh", "shard=64", *H100, "--no-steps").out
    assert "do not shard" not in large


def test_tensor_parallelism_across_machines_is_advised_against(transom: Call) -> None:
    page = transom("rehearse", *SMALL, *H100, "--mesh", "tensor=2", "--devices-per-node", "1")
    assert "tensor = 2 leaves a machine of 1 devices" in page.out


def test_a_recipe_is_rehearsed_for_this_machine(transom: Call) -> None:
    value = transom(
        "rehearse", "copy", "--set", "model.d_model=16", "--set", "model.n_heads=2", "--mesh", "data=2", "--json", "--no-steps"
    ).json
    assert value["cluster"]["name"] == "CPU process" and value["cluster"]["devices_per_node"] == 2
    assert [each["axis"] for each in value["ranks"][0]["collectives"]] == ["data"]
    own = transom("rehearse", "copy", "--set", "parallel.shard=2", "--device-flops", "1e10", "--json", "--no-steps").json
    assert own["mesh"] == value["mesh"] | {"data": 1, "shard": 2}
    recurrent = transom(
        "rehearse", "shakespeare-lstm", "--vocab-size", "60", "--mesh", "data=2", "--device-flops", "1e10", "--no-steps"
    ).out
    assert "activations are not predicted" in recurrent


@pytest.mark.parametrize("mesh", [MESH, ["--mesh", "shard=16"], ["--mesh", "data=200,tensor=2,pipeline=4", "--micro-batches", "400"]])
def test_mesh_and_timeline_are_drawn(mesh: list[str], transom: Call, tmp_path: Path) -> None:
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        assert transom("rehearse", *SMALL, *H100, *mesh, "--plot", file).code == 0
    first, second = (file.read_text() for file in files)
    assert first == second and "<desc>" in first
    header, *rows = files[0].with_suffix(".csv").read_text().splitlines()
    assert header == "stage,pass,micro_batch,start,end"
    kinds = [row.split(",")[1] for row in rows]
    assert kinds.count("forward") == kinds.count("backward") > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "tensor=3"], "parallel.tensor: expected a divisor of model.n_heads = 2, found 3"),
        (["--mesh", "data=4,tensor=3"], "the nearest mesh that fits is data=6,tensor=2"),
        (["--mesh", "pipeline=5"], "parallel.pipeline: expected at most the model's 4 blocks, found 5"),
        (["--mesh", "data"], "--mesh: expected data from 1 to 65,536, found ''"),
        (["--mesh", "rows=2"], "--mesh: expected an axis with its size, such as data=8, found 'rows=2'"),
        (["--mesh", "data=2", "--inter-bandwidth", "fast"], "--inter-bandwidth: expected a size above 0, found 'fast'"),
        (["--mesh", "data=4", "--batch-tokens", "32"], "--batch-tokens: expected a row of 16 tokens for each of 4 micro-batches, found 32"),
        (["--mesh", "data=2", "--plot", "mesh.gif"], "expected a file that ends in .svg"),
        (["--mesh", ""], "--mesh: expected an axis with its size, such as data=8, found ''"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str, transom: Call) -> None:
    assert message in transom("rehearse", *SMALL, *H100, *arguments).error
