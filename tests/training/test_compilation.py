"""Compiled training passes: the steps of eager ones with the same dropout masks, in one graph; and whether they pay."""

import gc
import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pydantic import TypeAdapter
from torch._dynamo.utils import counters

from tests.models.test_compile import INDUCTOR, TRACER
from tests.tiers import tiers
from tests.training.test_keyed_dropout import MODELS, MOE, SGD, batch
from tests.training.test_train_loop import MODEL as SMALL
from tests.training.test_train_loop import recipe, sit
from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.model import AnyModel
from transom.config.parallel import ParallelConfig
from transom.config.recipe import load_recipe
from transom.config.training import TrainingConfig
from transom.errors import ConfigError
from transom.models.build import build_model
from transom.planning.freed_memory import trim_malloc
from transom.tasks.task import build_training_setup
from transom.training import compilation, rank_state, setup
from transom.training.compilation import MIN_SECONDS, choose_compilation, compile_training_passes
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.task_protocol import Task
from transom.training.train_step import TrainStep

CPU, GPU = torch.device("cpu"), torch.device("cuda")
TRAINING = TrainingConfig(optimizer=SGD, max_grad_norm=None, label_smoothing=0.1)
FAMILIES = [name for name, each in MODELS.items() if not str(each["kind"]).startswith("recurrent") and name not in ("experts", "depths")]
MODEL = TypeAdapter(AnyModel).validate_python(MODELS["decoder"])


@pytest.fixture(autouse=True)
def _free_graphs() -> Iterator[None]:
    """Free what was compiled, which else is collected while a later test measures memory."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    gc.collect()
    trim_malloc()


def losses(name: str, compiled: bool, fields: dict[str, Any] | None = None, **options: Any) -> list[float]:
    """Return the losses of three steps on batches of several lengths."""
    torch.manual_seed(1)
    model = build_model(TypeAdapter(AnyModel).validate_python(MODELS[name] | (fields or {}))).train()
    if compiled:
        compile_training_passes(model, **({"backend": "eager"} | options))
    step = TrainStep(model, build_optimizer(model, SGD, torch.float32), TRAINING, torch.float32, CrossEntropy(0.1))
    found = []
    for rows, longest in (([0, 1, 2], 9), ([3, 4], 6), ([5, 0, 2], 8)):
        part = batch(MODELS[name]["kind"], rows, longest)
        if hasattr(part, "pixels"):
            vars(part)["pixels"] = part.pixels.float()
        result = step.step([part], 0.5)
        found.append(result.loss / result.n_target_tokens)
    return found


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@pytest.mark.parametrize("name", tiers(FAMILIES, ["seq2seq", "decoder", "classifier"]))
def test_steps_and_masks_are_those_of_eager_passes(name: str) -> None:
    assert losses(name, True, fullgraph=True) == pytest.approx(losses(name, False), rel=1e-4)


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        pytest.param("decoder", {"n_layers": 1}, marks=pytest.mark.long),
        *(pytest.param(name, {}, marks=pytest.mark.soak) for name in ("decoder", "seq2seq", "classifier", "vit")),
    ],
)
def test_compiled_steps_are_those_of_eager_passes(
    name: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor compiles without the results of earlier compilations, then reads its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    expected, cached = losses(name, False, fields), list[set[Path]]()
    for _ in range(2):
        assert losses(name, True, fields, backend="inductor") == pytest.approx(expected, rel=1e-4)
        cached.append({path for path in tmp_path.rglob("*") if path.suffix in (".cpp", ".so")})
        torch.compiler.reset()
    assert cached[0] and cached[1] == cached[0]


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_compiled_pass_with_other_hidden_states_is_noticed(factor: float, caplog: pytest.LogCaptureFixture) -> None:
    """The backend multiplies the results of graphs of any shape: of the second batch, and not of the first one."""
    graphs = list[torch.fx.GraphModule]()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        scale = 1.0 if len(graphs) == 1 else factor
        return lambda *args: tuple(each * scale if each.is_floating_point() else each for each in graph.forward(*args))

    assert losses("decoder", True, backend=backend) == pytest.approx(losses("decoder", False), rel=1e-5)
    warnings = [record.getMessage() for record in caplog.records if record.name == compilation.__name__]
    if factor == 1:
        assert not warnings
    else:
        assert len(warnings) == 1
        assert re.search(r"relative difference of 0\.01 for .* shape \(2, \d, 12\); training continues without", warnings[0])


def test_the_relative_difference_of_what_is_not_finite_is_infinite() -> None:
    x, bad = torch.tensor([3.0, 4.0]), torch.tensor([math.nan, 1.0])
    assert compilation.relative_difference(x * 1.5, x) == pytest.approx(0.5)
    assert compilation.relative_difference(bad, x) == compilation.relative_difference(x, bad) == math.inf
    assert compilation.relative_difference(bad, bad) == 0


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@pytest.mark.parametrize("name", ["decoder", "classifier"])
def test_no_graph_reads_a_tensor_in_another_dtype(name: str) -> None:
    """Inductor may overwrite such a tensor too early (torch 2.13): steps of a decoder with dropout were wrong without any error."""
    graphs = list[torch.fx.GraphModule]()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    losses(name, True, backend=backend)
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    assert any(node.target is operator.lshift for node in nodes), "random numbers are shifted out of words"
    assert not [node for node in nodes if node.target == "view" and any(isinstance(each, torch.dtype) for each in node.args)]


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
def test_further_steps_and_lengths_do_not_compile_again_and_again() -> None:
    counters.clear()
    losses("decoder", True, fullgraph=True)
    assert counters["stats"]["unique_graphs"] <= 2, "of the first shape, and of any shape"


@pytest.mark.parametrize(
    ("requested", "device", "seconds", "layout", "chosen"),
    [
        ("auto", GPU, MIN_SECONDS + 1, {}, True),
        ("auto", GPU, MIN_SECONDS - 1, {}, False),
        ("auto", GPU, MIN_SECONDS + 1, {"data": 2}, False),
        ("auto", GPU, MIN_SECONDS + 1, {"shard": 2}, False),
        ("auto", CPU, 1e9, {}, False),
        ("on", GPU, 0.0, {"data": 2}, True),
        ("off", GPU, 1e9, {}, False),
        ("cuda-graphs", GPU, 0.0, {}, True),
    ],
)
def test_a_run_is_compiled_if_it_pays(
    requested: str, device: torch.device, seconds: float, layout: dict[str, int], chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_spec", lambda name: object())
    monkeypatch.setattr(compilation.shutil, "which", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    training = TRAINING.model_copy(update={"compile": requested})
    assert choose_compilation(MODEL, training, ParallelConfig(**layout), device, lambda: seconds) == chosen


@pytest.mark.parametrize(
    ("max_steps", "max_minutes", "observed", "compiled", "minutes"),
    [(10_000, None, (), "on", 20), (4_000, None, (), "off", 8), (10_000, 5.0, (), "off", 5), (10_000, None, ("logits",), "off", 20)],
)
def test_the_forecast_is_that_of_all_steps_at_the_rate_of_eager_training(
    max_steps: int, max_minutes: float | None, observed: tuple[str, ...], compiled: str, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 3 TFLOP, in three micro-batches, takes 0.12 s at 25 TFLOP/s, a quarter of the peak rate."""
    monkeypatch.setattr(compilation, "compilation_problem", lambda *_: None)
    micro_batches = [0.5e12, 1e12, 1.5e12]
    task = Mock(spec=Task)
    task.flops = lambda flops: flops
    task.loader = SimpleNamespace(batches_from=lambda step: iter([(step, micro_batches)]))
    task.objective = lambda model: SimpleNamespace(sites=observed)
    run = recipe(max_steps=max_steps, max_minutes=max_minutes, compile="auto")
    chosen, notes = setup._choose_compilation(run, task, build_model(MODEL), GPU, 1e14)
    assert chosen.training.compile == compiled
    assert any(f"forecast to take {minutes} minutes" in note for note in notes)


def test_a_note_tells_the_choice_and_the_forecast() -> None:
    assert compilation.describe_choice(True, 7200.0) == [
        "torch.compile compiles the passes, which takes about a minute: the run is forecast to take 120 minutes without it;"
        " training.compile = 'off' turns it off"
    ]
    assert "minute: training.compile asks for it; " in compilation.describe_choice(True)[0]
    assert compilation.describe_choice(False, 90.0) == [
        "torch.compile is not used: the run is forecast to take 2 minutes without it, and it pays from 10 minutes on;"
        " training.compile = 'on' turns it on"
    ]
    assert compilation.describe_choice(False) == [], "on a CPU, where nobody asked for it"


@pytest.mark.parametrize(
    ("training", "layout", "device", "missing", "problem"),
    [
        ({}, {"tensor": 2}, GPU, False, "expected processes that hold the whole model; set only parallel.data"),
        ({"activation_checkpointing": "blocks"}, {}, GPU, False, "activation_checkpointing = 'none', found 'blocks'"),
        ({}, {}, GPU, True, "expected Triton for this GPU, found none; install it"),
        ({}, {}, CPU, True, r"expected a compiler, found none of c\+\+, g\+\+, clang\+\+; install one"),
    ],
)
def test_what_cannot_be_compiled_is_refused_and_not_chosen(
    training: dict[str, Any], layout: dict[str, int], device: torch.device, missing: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Callable[[str], object] = lambda name: None if missing else name  # noqa: E731 - one stand-in for both lookups
    monkeypatch.setattr(compilation, "find_spec", found)
    monkeypatch.setattr(compilation.shutil, "which", found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    asked = TRAINING.model_copy(update=training | {"compile": "on"})
    with pytest.raises(ConfigError, match=f"training.compile = 'on': .*{problem}.*, or set training.compile to 'off'"):
        choose_compilation(MODEL, asked, ParallelConfig(**layout), device, lambda: 1e9)
    assert not choose_compilation(MODEL, asked.model_copy(update={"compile": "auto"}), ParallelConfig(**layout), device, lambda: 1e9)


def test_cuda_graphs_need_a_gpu_and_keep_the_gradients_in_place() -> None:
    training = TRAINING.model_copy(update={"compile": "cuda-graphs"})
    with pytest.raises(ConfigError, match=r"compile = 'cuda-graphs': expected a GPU for CUDA graphs, found cpu; set .* to 'on', or set"):
        choose_compilation(MODEL, training, ParallelConfig(), CPU, lambda: 1e9)
    weights = []
    for settings in (TRAINING, training):
        torch.manual_seed(1)
        model = build_model(MODEL).train()
        step = TrainStep(model, build_optimizer(model, SGD, torch.float32), settings, torch.float32, CrossEntropy(0.1))
        places = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
        for rows in ([0, 1], [2, 3]):
            step.step([batch("decoder", rows, 9), batch("decoder", [4], 6)], 0.5)
        assert places == [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
        assert len(places) == (len(list(model.parameters())) if settings is training else 0)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.compile
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compile_", list(compilation.REQUESTS))
def test_compiled_steps_on_a_gpu_are_those_of_eager_passes(compile_: str) -> None:
    """Several micro-batches per step, each of several shapes, with dropout; later micro-batches add to the gradients of earlier ones."""
    found = []
    for value in ("off", compile_):
        torch.manual_seed(1)
        model = build_model(MODEL).to(GPU).train()
        if value != "off":
            compile_training_passes(model, **compilation.REQUESTS[value])
        training = TRAINING.model_copy(update={"compile": value})
        step = TrainStep(model, build_optimizer(model, SGD, torch.float32), training, torch.float32, CrossEntropy(0.1))
        parts = [[([0, 1, 2], 9), ([3, 4, 5], 9)], [([3, 4], 6), ([5, 0], 6)]] * 3
        found.append([step.step([batch("decoder", *part) for part in of_step], 0.5).loss for of_step in parts])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_old_gpus_and_those_without_a_compiler_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "find_spec", lambda name: object())
    for capability, program, problem in (
        ((6, 1), "gcc", r"capability \(7, 0\), .* found \(6, 1\)"),
        ((8, 0), None, "none of cc, gcc, clang"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        monkeypatch.setattr(compilation.shutil, "which", lambda name, program=program: program)
        found = compilation.compilation_problem(MODEL, TRAINING, ParallelConfig(), GPU)
        assert found is not None and re.search(problem, found)
        assert not choose_compilation(MODEL, TRAINING, ParallelConfig(), GPU, lambda: 1e9)


def test_a_loss_that_reads_activations_is_not_compiled(tmp_path: Path) -> None:
    experts = recipe(SMALL | {"feed_forward": MOE}, compile="on")
    with (
        RunFolder.create(tmp_path / "run") as folder,
        pytest.raises(ConfigError, match="expected a loss of the logits alone, found one that reads"),
    ):
        build_training_setup(experts, Path(), folder)


def test_recurrent_networks_are_not_compiled() -> None:
    recurrent = TypeAdapter(AnyModel).validate_python(MODELS["recurrent"])
    with pytest.raises(ConfigError, match="expected a Transformer, found a model of kind recurrent-seq2seq, or set"):
        choose_compilation(recurrent, TRAINING.model_copy(update={"compile": "on"}), ParallelConfig(), GPU, lambda: 0.0)


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
def test_a_run_keeps_the_choice_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_state, "compile_training_passes", partial(compile_training_passes, backend="eager"))
    eager = sit(tmp_path / "eager", max_steps=6)
    sit(tmp_path / "compiled", max_steps=3, compile="on")
    compiled = sit(tmp_path / "compiled", max_steps=6)
    assert compiled.step == eager.step == 6
    assert [load_recipe(tmp_path / name / RECIPE)[0].training.compile for name in ("eager", "compiled")] == ["off", "on"]
