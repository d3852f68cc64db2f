"""LoRA adapters in PEFT's format against the peft library: logits of imported and of exported ones, and round trips bit for bit."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.exchange.foreign_models import CASES, ForeignCase, LibraryInFloat64, inputs
from tests.exchange.test_agreement import exported, imported, load_ours, load_theirs, our_logits
from transom.checkpoints.run_files import ADAPTER, BASE, CONFIG, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.exchange.adapter_folder import LORA_A, LORA_B
from transom.exchange.export_adapter import export_adapter
from transom.exchange.family import TASKS
from transom.exchange.import_adapter import import_adapter
from transom.exchange.imported import Imported
from transom.exchange.peft_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from transom.files.atomic_io import json_bytes

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
    """Import a tiny model, with the files of an import but without a tokenizer."""
    run = imported(case.save(folder / "theirs", dtype), case, folder / "base")
    kind = run.load_config().kind  # type: ignore[attr-defined]
    Imported(model_type=case.model_type, architecture=case.architecture, task=TASKS[kind]).write(run)
    return run


@pytest.fixture(params=TARGETS)
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
