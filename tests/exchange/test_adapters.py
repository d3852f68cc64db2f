"""LoRA adapters in PEFT's format against the peft library: logits of imported and of exported ones, and round trips bit for bit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers.models import WordLevel
from torch import nn

from tests.exchange.foreign_models import CASES, VOCAB, ForeignCase, LibraryInFloat64, inputs
from tests.exchange.test_agreement import imported, load_ours, load_theirs, our_logits
from tests.tiers import every
from transom.checkpoints.run_files import ADAPTER, BASE, RECIPE, TOKENIZER, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import dump_recipe
from transom.config.task_registry import recipes_by_task
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.exchange.adapters.export_adapter import export_adapter
from transom.exchange.adapters.import_adapter import import_adapter
from transom.exchange.adapters.peft_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from transom.exchange.family import TASKS
from transom.exchange.import_model import new_run_id
from transom.exchange.imported import Imported
from transom.models.apply_lora import apply_lora, merge_lora
from transom.models.build import build_uninitialized

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # of peft
EXACT, CLOSE = 1e-10, 1e-5
BY_NAME = {case.name: case for case in CASES}
TARGETS: dict[str, dict[str, Any]] = {
    "llama": {"target_modules": ["q_proj", "v_proj", "down_proj"]},
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "use_rslora": True},
    "gpt_neox": {"target_modules": ["query_key_value", "dense"]},
    "gemma2": {"target_modules": ["q_proj", "o_proj"]},
    "bert-masked": {"target_modules": ["query", "value", "intermediate.dense"]},
    "bert-classes": {"target_modules": ["query", "key"], "task_type": "SEQ_CLS"},
    "distilbert-classes": {"target_modules": ["q_lin", "lin2"], "modules_to_save": ["classifier"]},
    "t5": {"target_modules": ["q", "v", "wi"], "task_type": "SEQ_2_SEQ_LM"},
    "vit": {"target_modules": ["q_proj", "v_proj", "fc2"], "modules_to_save": ["classifier"]},
}
"""Settings of an adapter by the name of the case."""


def random_adapter(case: ForeignCase, folder: Path, base: Path, dtype: torch.dtype = torch.float64, **options: Any) -> PeftModel:
    """Write an adapter with random A and B, and random heads where it saves them, and return it on its base."""
    torch.manual_seed(3)
    settings = {"r": 4, "lora_alpha": 10, "task_type": None, **TARGETS[case.name], **options}
    model = get_peft_model(load_theirs(case, base, dtype), LoraConfig(**settings)).to(dtype)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, 0.05, 0.3)
    model.save_pretrained(folder)
    return model.eval()


def base_run(case: ForeignCase, folder: Path, dtype: torch.dtype = torch.float64) -> RunFolder:
    """Import a tiny model, with the files of an import, and any tokenizer."""
    with_padding = replace(case, from_data={**case.from_data, **({"pad_token_id": 1} if case.model_type == "roberta" else {})})
    run = imported(case.save(folder / "theirs", dtype), with_padding, folder / "base")
    kind = run.load_config().kind  # type: ignore[attr-defined]
    words = tokenizers.Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, "w3"))
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    run.write(TOKENIZER, Tokenizers(Tokenizer.from_library(words.to_str(), special)).to_bytes())
    Imported(model_type=case.model_type, architecture=case.architecture, task=TASKS[kind]).write(run)
    return run


@pytest.fixture(params=every(3, TARGETS))
def case(request: pytest.FixtureRequest) -> ForeignCase:
    return BY_NAME[request.param]


@torch.no_grad()
def test_logits_of_an_imported_adapter_are_pefts(case: ForeignCase, tmp_path: Path) -> None:
    run = base_run(case, tmp_path)
    given = inputs(run.load_config().kind, torch.float64)  # type: ignore[attr-defined]
    with LibraryInFloat64():
        adapted = random_adapter(case, tmp_path / "adapter", tmp_path / "theirs")
        expected, plain = adapted(**given).logits, load_theirs(case, tmp_path / "theirs", torch.float64)(**given).logits
    import_adapter(tmp_path / "adapter", run.path, tmp_path / "run")
    found = our_logits(load_ours(RunFolder.open(tmp_path / "run"), torch.float64), given)
    assert (found - expected).abs().max() <= EXACT * max(1.0, float(expected.abs().max()))
    assert (plain - expected).abs().max() > 1e-3


@torch.no_grad()
def test_an_imported_adapter_is_exported_bit_for_bit(case: ForeignCase, tmp_path: Path) -> None:
    run = base_run(case, tmp_path, torch.float32)
    random_adapter(case, tmp_path / "adapter", tmp_path / "theirs", torch.float32)
    import_adapter(tmp_path / "adapter", run.path, tmp_path / "run")
    export_adapter(tmp_path / "run", tmp_path / "again")
    before, after = (load_file(tmp_path / name / ADAPTER_WEIGHTS) for name in ("adapter", "again"))
    assert before.keys() == after.keys() and all(torch.equal(x, after[name]) for name, x in before.items())
    assert json.loads((tmp_path / "again" / ADAPTER_CONFIG).read_text()) == json.loads((tmp_path / "adapter" / ADAPTER_CONFIG).read_text())
    assert not (tmp_path / "again" / "base").exists()


DATA: dict[str, Any] = {
    "language": {"train": {"files": "text.txt"}},
    "masked": {"train": {"files": "text.txt"}},
    "classification": {"train": {"file": "labeled.tsv"}},
    "image-classification": {"train": {"images": "images"}},
    "translation": {"generate": {"kind": "copy"}},
}
TRAINED: list[tuple[str, list[str], list[str]]] = [
    ("llama", ["attn.q", "attn.v"], []),
    ("gpt2", ["attn.q", "attn.v"], []),
    ("gpt2", ["attn.q", "attn.k", "attn.v", "attn.o", "ff.down"], []),
    ("gpt2", ["attn.k"], []),
    ("gpt_neox", ["attn.q", "attn.v", "attn.o"], []),
    ("bert-masked", ["ff.down"], []),
    ("bert-classes", ["attn.q", "attn.o"], ["unembedding.weight", "unembedding.bias"]),
    ("bert-classes", ["attn.v"], ["pooler.weight", "pooler.bias", "unembedding.weight", "unembedding.bias"]),
    ("roberta-classes", ["ff.up"], ["unembedding.weight", "unembedding.bias"]),
    ("distilbert-classes", ["attn.k"], ["unembedding.weight", "unembedding.bias"]),
    ("t5", ["attn.q", "cross.v", "ff.up"], []),
    ("vit", ["attn.q", "ff.up"], ["unembedding.weight", "unembedding.bias"]),
]
"""Cases, adapted layers, and tensors that were trained beside the adapter."""


def trained_run(case: ForeignCase, targets: list[str], fresh: list[str], folder: Path) -> RunFolder:
    """Write a run folder as training with an adapter does, with random A, B and heads."""
    base = base_run(case, folder, torch.float32)
    config = base.load_config()
    task = TASKS[config.kind]  # type: ignore[attr-defined]
    settings = {"kind": "lora", "rank": 3, "alpha": 5.0, "target_modules": targets}
    model = config.model_dump(mode="json")
    tables = {"task": task, "data": DATA[task], "model": model, "training": {"adapter": settings, "init_from": str(base.path)}}
    if task == "image-classification":
        tables["training"]["batch_size"] = 8
    recipe = recipes_by_task()[task].model_validate(tables)
    network, weights = build_uninitialized(config), base.read_weights(WEIGHTS)
    base.load_weights(network)
    torch.manual_seed(4)
    apply_lora(network, recipe.training.adapter, fresh)
    for parameter in network.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, 0.05, 0.3)
    trained = {name: x.detach() for name, x in network.named_parameters() if x.requires_grad}
    with RunFolder.create(folder / "run") as run:
        run.write(RECIPE, dump_recipe(recipe).encode())
        run.write_config(config, new_run_id())
        if config.VOCABULARIES:
            run.write(TOKENIZER, base.read(TOKENIZER))
        run.write_tensors(BASE, {name: x for name, x in weights.items() if name not in fresh}, 0)
        run.write_tensors(ADAPTER, trained, 1)
        run.write_tensors(WEIGHTS, {name: x for name, x in merge_lora(network, trained).items() if name in weights}, 1)
    return RunFolder.open(folder / "run")


@torch.no_grad()
@pytest.mark.parametrize("trained", every(4, TRAINED), ids=lambda trained: trained[0])
def test_peft_loads_an_exported_adapter(trained: tuple[str, list[str], list[str]], tmp_path: Path) -> None:
    name, targets, fresh = trained
    case = BY_NAME[name]
    run = trained_run(case, targets, fresh, tmp_path)
    report = export_adapter(run.path, tmp_path / "adapter", "theirs", case.model_type)
    assert report.agreement.relative < CLOSE and not (tmp_path / "adapter" / "base").exists()
    base = load_theirs(case, tmp_path / "theirs", torch.float32)
    given = inputs(run.load_config().kind, torch.float32)  # type: ignore[attr-defined]
    plain = base(**given).logits
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    expected, found = our_logits(load_ours(run, torch.float32), given), adapted(**given).logits
    scale = max(1.0, float(expected.abs().max()))
    assert (found - expected).abs().max() <= CLOSE * scale < (plain - expected).abs().max()
    lora = {name for name, _ in adapted.named_parameters() if "lora_" in name}
    assert len(lora) == sum("lora_" in name for name in load_file(tmp_path / "adapter" / ADAPTER_WEIGHTS))
    assert adapted.peft_config["default"].base_model_name_or_path == "theirs"


@pytest.mark.parametrize("trained", every(4, TRAINED), ids=lambda trained: trained[0])
def test_an_exported_adapter_is_imported_bit_for_bit(trained: tuple[str, list[str], list[str]], tmp_path: Path) -> None:
    name, targets, fresh = trained
    case = BY_NAME[name]
    run = trained_run(case, targets, fresh, tmp_path)
    export_adapter(run.path, tmp_path / "adapter", model_type=case.model_type)
    import_adapter(tmp_path / "adapter", tmp_path / "base", tmp_path / "again")
    before, after = (RunFolder.open(tmp_path / folder).read_weights(ADAPTER) for folder in ("run", "again"))
    assert before.keys() <= after.keys() and all(torch.equal(x, after[name]) for name, x in before.items())
    assert {name.rpartition(".")[0] for name in after.keys() - before.keys()} <= {"pooler", "unembedding"}
    before, after = (RunFolder.open(tmp_path / folder).read_weights(WEIGHTS) for folder in ("run", "again"))
    assert all((x - after[name]).abs().max() <= 1e-6 for name, x in before.items())
