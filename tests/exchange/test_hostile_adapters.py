"""Adapters made to break an import, of another base, or of a kind that transom lacks are refused in one line, and nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tests.exchange.test_adapters import BY_NAME, base_run, random_adapter, trained_run
from tests.exchange.test_agreement import load_theirs
from transom.checkpoints.run_folder import RunFolder
from transom.errors import CheckpointError, ConfigError, TransomError
from transom.exchange.adapters.adapter_folder import LORA_A, LORA_B, PREFIX, require_base
from transom.exchange.adapters.export_adapter import export_adapter
from transom.exchange.adapters.import_adapter import import_adapter
from transom.exchange.adapters.peft_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # of peft
Attack = Callable[[Path], None]
Q = f"{PREFIX}model.layers.0.self_attn.q_proj"
MERGE = "merge_and_unload"
PICKLE = b"\x80\x04cos\nsystem\n."


def fields(**changed: Any) -> Attack:
    """Return an attack that sets fields of the configuration."""

    def attack(folder: Path) -> None:
        found = json.loads((folder / ADAPTER_CONFIG).read_text())
        (folder / ADAPTER_CONFIG).write_text(json.dumps(found | changed))

    return attack


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Attack:
    """Return an attack that changes the tensors."""

    def attack(folder: Path) -> None:
        found = load_file(folder / ADAPTER_WEIGHTS)
        change(found)
        save_file({name: x.clone() for name, x in found.items()}, folder / ADAPTER_WEIGHTS)

    return attack


def add(name: str, *shape: int) -> Attack:
    """Return an attack that adds a tensor."""
    return tensors(lambda found: found.update({name: torch.zeros(shape)}))


def drop(part: str) -> Attack:
    """Return an attack that removes the tensors with a part in their names."""
    return tensors(lambda found: [found.pop(name) for name in list(found) if part in name])


def pickle_instead(folder: Path) -> None:
    (folder / ADAPTER_WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(PICKLE)


def pickle_by_another_name(folder: Path) -> None:
    (folder / ADAPTER_WEIGHTS).write_bytes(PICKLE)


def link_outside(folder: Path) -> None:
    (folder / ADAPTER_WEIGHTS).rename(folder.parent / "outside")
    (folder / ADAPTER_WEIGHTS).symlink_to(folder.parent / "outside")


ATTACKS: dict[str, tuple[Attack, str]] = {
    "other-kind": (fields(peft_type="IA3"), "peft_type: expected LORA, found 'IA3'"),
    "dora": (fields(use_dora=True), f"use_dora: expected LoRA on whole linear layers .* found True; .*{MERGE}"),
    "pissa": (fields(init_lora_weights="pissa"), "init_lora_weights: .* found 'pissa'"),
    "bias": (fields(bias="all"), "bias: .* found 'all'"),
    "lora-bias": (fields(lora_bias=True), "lora_bias: "),
    "some-layers": (fields(layers_to_transform=[0]), "layers_to_transform: "),
    "replicated": (fields(layer_replication=[[0, 2]]), "layer_replication: "),
    "tokens": (fields(trainable_token_indices=[3]), "trainable_token_indices: "),
    "parameters": (fields(target_parameters=["experts.down_proj"]), "target_parameters: "),
    "of-the-future": (fields(use_something_new=True), "use_something_new: "),
    "rank": (fields(r=5), "expected A of shape .5, 48. and B of shape .32, 5., found .4, 48. and .32, 4."),
    "rank-text": (fields(r="4"), "r: expected an integer above 0 to 65536, found '4'"),
    "rank-zero": (fields(r=0), "r: expected an integer above 0"),
    "rank-truth": (fields(r=True), "r: expected an integer above 0"),
    "rank-huge": (fields(r=10**30), "r: expected an integer above 0"),
    "alpha": (fields(lora_alpha=float("nan")), "lora_alpha: expected a number above 0"),
    "dropout": (fields(lora_dropout=2), "lora_dropout: expected a number from 0 to 1, found 2"),
    "scales": (fields(alpha_pattern={"q_proj": 3}), f"rank_pattern: expected one rank and one scale of all layers, found scale .*{MERGE}"),
    "slow-pattern": (fields(alpha_pattern={"(a+)+$": 3}), "alpha_pattern: expected ends of names of modules"),
    "pattern-list": (fields(rank_pattern=["q_proj"]), "rank_pattern: expected ends of names of modules"),
    "no-object": (lambda folder: (folder / ADAPTER_CONFIG).write_text("[]") and None, "expected a JSON object, found"),
    "deep": (lambda folder: (folder / ADAPTER_CONFIG).write_text("[" * 10**5) and None, "expected JSON, found damaged content"),
    "no-config": (lambda folder: (folder / ADAPTER_CONFIG).unlink(), "expected a folder with adapter_config.json, found none"),
    "no-weights": (lambda folder: (folder / ADAPTER_WEIGHTS).unlink(), "expected adapter_model.safetensors, found none"),
    "pickle": (pickle_instead, "expected adapter_model.safetensors, found adapter_model.bin, a pickle, which can run code"),
    "pickle-inside": (pickle_by_another_name, "expected safetensors, found a pickle"),
    "link": (link_outside, "found a symbolic link to a file outside it"),
    "no-tensors": (tensors(dict.clear), "expected matrices A and B of linear layers, found none"),
    "no-such-layer": (add(f"{PREFIX}model.layers.7.self_attn.q_proj{LORA_A}", 4, 32), "found none of that name; give the run"),
    "no-prefix": (add(f"model.layers.0.self_attn.k_proj{LORA_A}", 4, 32), "found none of that name"),
    "magnitudes": (add(f"{Q}.lora_magnitude_vector", 32), "found none of that name"),
    "embedding": (add(f"{PREFIX}model.embed_tokens{LORA_A}", 4, 64), "expected a linear layer of attention or of a feed-forward"),
    "norm": (add(f"{PREFIX}model.norm{LORA_A}", 4, 32), "expected a linear layer of attention or of a feed-forward"),
    "head": (add(f"{PREFIX}lm_head.weight", 64, 33), "tensor 'lm_head.weight': expected shape .64, 32. of the base model, found .64, 33."),
    "only-a": (drop(f"q_proj{LORA_B}"), "expected A of shape .4, 32. and B of shape .32, 4., found .4, 32. and none"),
    "one-block": (drop("layers.1.self_attn.q_proj"), f"expected attn.q to be adapted in every block, found .*{MERGE}"),
    "nan": (tensors(lambda found: found[Q + LORA_A].view(-1).__setitem__(3, float("nan"))), "expected finite weights, found 1 of 128"),
    "integers": (tensors(lambda found: found.update({Q + LORA_A: found[Q + LORA_A].to(torch.int8)})), "expected floating-point values"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return base_run(BY_NAME["llama"], tmp_path_factory.mktemp("base"), torch.float32)


@pytest.fixture
def adapter(base: RunFolder, tmp_path: Path) -> Path:
    random_adapter(BY_NAME["llama"], tmp_path / "adapter", base.path.parent / "theirs", torch.float32)
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(name: str, base: RunFolder, adapter: Path, tmp_path: Path) -> None:
    attack, message = ATTACKS[name]
    attack(adapter)
    with pytest.raises(CheckpointError, match=message) as refused:
        import_adapter(adapter, base.path, tmp_path / "run")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 800 and not (tmp_path / "run").exists()


def test_several_ranks_are_refused(base: RunFolder, tmp_path: Path) -> None:
    random_adapter(BY_NAME["llama"], tmp_path / "a", base.path.parent / "theirs", torch.float32, rank_pattern={"q_proj": 2})
    with pytest.raises(CheckpointError, match=r"expected one rank and one scale of all layers, found rank \d .* and \d "):
        import_adapter(tmp_path / "a", base.path, tmp_path / "run")
    same = {"rank_pattern": {"q_proj": 4, "model.layers.0.self_attn.v_proj": 4}, "alpha_pattern": {"^model.layers.1.mlp.down_proj": 10}}
    random_adapter(BY_NAME["llama"], tmp_path / "b", base.path.parent / "theirs", torch.float32, **same)
    assert "LoRA of rank 4" in import_adapter(tmp_path / "b", base.path, tmp_path / "run").notes[0]


def test_an_adapter_of_another_family_is_refused(base: RunFolder, tmp_path: Path) -> None:
    case = BY_NAME["gpt2"]
    case.save(tmp_path / "gpt2")
    get_peft_model(
        load_theirs(case, tmp_path / "gpt2", torch.float32), LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    ).save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="expected one of a layer of the base model, a LlamaForCausalLM, found none of that name"):
        import_adapter(tmp_path / "adapter", base.path, tmp_path / "run")


def test_folders_that_are_no_adapter_and_runs_without_one_are_named(base: RunFolder, adapter: Path, tmp_path: Path) -> None:
    for call, message in (
        (lambda: require_base(adapter, None), "expected the run of this adapter's base model, found none; import that model first"),
        (lambda: require_base(base.path, base.path), "--base: expected an adapter of the PEFT library, found .*; omit --base"),
        (lambda: import_adapter(tmp_path / "nowhere", base.path, tmp_path / "run"), "adapter_config.json, found nothing"),
        (lambda: import_adapter(adapter, base.path, base.path), "expected a new folder, found a run; give another OUT"),
        (lambda: export_adapter(base.path, adapter), "expected a new folder, found a folder; give another OUT"),
        (lambda: export_adapter(base.path, tmp_path / "out"), "--adapter: expected a run with training.adapter = 'lora', found .*; omit"),
    ):
        with pytest.raises(TransomError, match=message):
            call()


def test_a_run_that_peft_cannot_express_is_refused(tmp_path: Path) -> None:
    run = trained_run(BY_NAME["mixtral"], ["ff.up"], [], tmp_path / "experts")
    with pytest.raises(ConfigError, match=r"expected linear layers that MixtralForCausalLM has, found model.layers.0.block_sparse_moe"):
        export_adapter(run.path, tmp_path / "out")
    run = trained_run(BY_NAME["llama"], ["attn.q"], ["embedding.tokens.weight"], tmp_path / "embedding")
    with pytest.raises(ConfigError, match=r"expected embeddings as in the base run, found embedding\.tokens\.weight"):
        export_adapter(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
