"""Measure decoders, encoders and ViT beside the transformers library's models of the same shape: training and inference speed.

    python -m benchmarks.families [--only gpt2 gpt-384 llama gpt2-small bert vit] [--no-compile] [--quick] [--rounds N] [--out FILE]

A training step is forward, backward, gradient clipping and fused Adam. Decoders then continue prompts greedily; encoders and ViT encode a
batch. The systems are timed in turn in one run. transom runs in the precision that it chooses itself, and generates and encodes in int8
too. The transformers library runs in float32, on CPUs with bfloat16 instructions also in bfloat16, and in both with `torch.compile` if
there is a C++ compiler, except for generation, where a growing cache would be recompiled. Some shapes have more peers, where these are
installed: gpt-384 is also trained by x-transformers and litgpt (`benchmarks/peers/gpt.py`), and ONNX Runtime encodes
(`benchmarks/peers/onnx_runtime.py`). gpt2-small continues one prompt, also by llama.cpp (`benchmarks/peers/llama_cpp.py`). Weights and
inputs are random, because the time does not depend on them.
"""

import argparse
import copy
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from benchmarks.measure import describe_environment, faster_peak, matmul_workloads, peak_flops, read_earlier, time_interleaved, write_models
from benchmarks.shapes import LEARNING_RATE, TRAINING, random_tokens
from benchmarks.translation import Row, print_table, row, seconds_of, start_workers, step_memory, with_ratios
from transom.config.architecture import ModelConfig
from transom.config.model import AnyModel
from transom.config.packaged import packaged_presets
from transom.config.training import TrainingConfig
from transom.data.batch import Batch, ImageBatch, LabeledTextBatch, LanguageBatch, PaddedSequences
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning.flops import Flops, count_flops
from transom.planning.hardware import PeakRates, measure_peak
from transom.planning.precision import choose_precision, choose_threads

CLASSES = ("a", "b", "c", "d")
LIBRARIES = ("torch", "transformers", "x-transformers", "litgpt", "onnxruntime", "llama_cpp_python")
"""The systems of this benchmark, whose versions are recorded."""

COUNTED = ("training", "encoding")
"""Workloads whose FLOP/s are compared with the peak rate, which is measured again in turns with them."""

Workloads = dict[tuple[str, str], Callable[[], Any]]
"""Workloads by (name, mode), such as ``("training", "bf16")``."""


@dataclass(frozen=True)
class Family:
    """A model shape with its training batch and prompts.

    Attributes:
        name: name of the transformers library's model.
        preset: transom's preset of the same architecture.
        fields: fields that override the preset.
        rows: rows per batch.
        length: tokens per row; for ViT, patches and the class token.
        prompts: (rows, tokens) of the prompts that a decoder continues.
        new: tokens to generate per prompt.
        training: optimizer and loss settings.
        has_more_peers: the libraries of ``benchmarks/peers/gpt.py`` train it too.
    """

    name: str
    preset: str
    fields: Mapping[str, Any]
    rows: int
    length: int
    prompts: tuple[tuple[int, int], ...] = ()
    new: int = 64
    training: TrainingConfig = field(default=TRAINING.model_copy(update={"label_smoothing": 0.0}))
    has_more_peers: bool = False

    @cached_property
    def config(self) -> ModelConfig:
        """The complete configuration of transom's model."""
        fields = packaged_presets()[self.preset]["model"] | dict(self.fields)
        if fields["kind"] == "text-classifier":
            del fields["tie_embeddings"]  # a classifier outputs classes, not tokens
        config: ModelConfig = TypeAdapter(AnyModel).validate_python(fields)
        return config

    @property
    def flops(self) -> Flops:
        """FLOPs of the forward pass over the batch, which computes the logits of all tokens or of one class."""
        source, target = (0, self.length) if self.prompts else (self.length, 1)
        return count_flops(self.config, self.rows, source, target)


_SIZE = {"d_model": 512, "n_layers": 6, "n_heads": 8, "d_ff": 2048, "dropout": 0.1}
_TINY = {"d_model": 32, "n_layers": 2, "n_heads": 2, "d_ff": 64, "dropout": 0.1}
_TEXT = {"vocab_size": 8000, "max_seq_len": 256}


def families(quick: bool) -> list[Family]:
    """Return the model families; ``quick`` shapes are tiny and only check that everything runs."""
    size, text = (_TINY, {"vocab_size": 120, "max_seq_len": 48}) if quick else (_SIZE, _TEXT)
    rows, length, new = (2, 8, 4) if quick else (16, 256, 64)
    prompts = ((2, 6),) if quick else ((1, 32), (16, 32))
    encoder = {"kind": "text-classifier", "classes": CLASSES, "attention_dropout": 0.0}
    small = {"vocab_size": 65, "max_seq_len": 48 if quick else 256, "dropout": 0.0} | (
        {} if quick else {"d_model": 384, "n_heads": 6, "d_ff": 1536}
    )
    gpt2_small = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072, "vocab_size": 50257, "max_seq_len": 1024}
    undropped = {"dropout": 0.0, "attention_dropout": 0.0}  # as in the peers
    one_prompt = ((1, 6 if quick else 32),)
    image = {"image_size": 32, "patch_size": 4, "classes": CLASSES}
    return [
        Family("gpt2", "gpt2", size | text | {"attention_dropout": 0.0}, rows, length, prompts, new),
        Family("gpt-384", "gpt2", size | small | {"attention_dropout": 0.0}, rows, length, prompts, new, has_more_peers=True),
        Family("llama", "llama-7b", size | text | {"n_kv_heads": 2 if quick else 4, "dropout": 0.0}, rows, length, prompts, new),
        Family("gpt2-small", "gpt2", (size | text if quick else gpt2_small) | undropped, rows // 2, length, one_prompt, new),
        Family("bert", "bert-base", size | text | encoder, 4 * rows, length // 4),
        Family("vit", "vit-base-16", size | image, 4 * rows, 65),
    ]


def build_batch(family: Family) -> Batch:
    """Build the batch for training and encoding."""
    labels, samples = torch.arange(family.rows) % len(CLASSES), tuple(range(family.rows))
    if family.name == "vit":
        return ImageBatch(torch.rand(family.rows, 3, 32, 32, generator=torch.Generator().manual_seed(1)), labels, samples)
    tokens = random_tokens(family.rows, family.length, family.config.vocab_size, 1)
    if family.prompts:
        return LanguageBatch(
            PaddedSequences.pad(tokens.tolist()), random_tokens(family.rows, family.length, family.config.vocab_size, 2), samples
        )
    return LabeledTextBatch(PaddedSequences.pad(tokens.tolist()), labels, samples)


def transom_workloads(family: Family) -> Workloads:
    """Return transom's workloads, run by the same functions as its training and inference."""
    from transom.decoding.backends.decoder_backend import build_decoder_backend, build_encoder_backend
    from transom.decoding.backends.native_decoder import decoder_step_library, unsupported_reason
    from transom.decoding.inference import prepare_for_inference
    from transom.decoding.predictors.generator import Generator

    torch.manual_seed(1)
    model, batch = build_model(family.config), build_batch(family)
    precision = choose_precision("auto", torch.device("cpu"))
    inference_model = copy.deepcopy(model)
    prepare_for_inference(inference_model, precision.dtype, torch.device("cpu"))
    workloads: Workloads = {}
    workloads["training", precision.name] = training_step(model, batch, family.training, precision.dtype)
    if family.prompts:
        tokenizer = word_tokenizer(family.config.vocab_size)
        backends = {precision.name: build_decoder_backend(inference_model)}
        if unsupported_reason(inference_model) is None:
            backends["int8"] = build_decoder_backend(inference_model, int8=True)
        for (rows, length), (mode, backend) in itertools.product(family.prompts, backends.items()):
            generator = Generator(inference_model, tokenizer, precision=precision, decoder_backend=backend)  # type: ignore[arg-type]
            workloads[f"generation, batch {rows}", mode] = partial(_generate_transom, generator, family, rows, length)
    else:
        workloads["encoding", precision.name] = partial(_forward_transom, build_encoder_backend(inference_model), batch)
        if decoder_step_library()[0] is not None:
            workloads["encoding", "int8"] = partial(_forward_transom, build_encoder_backend(inference_model, int8=True), batch)
    return workloads


def training_step(model: Network, batch: Batch, training: TrainingConfig, dtype: torch.dtype) -> Callable[[], float]:
    """Return a training step, which returns the mean loss of a target token."""
    from transom.training.objectives.objective import CrossEntropy
    from transom.training.optimizer import build_optimizer
    from transom.training.train_step import TrainStep

    optimizer, objective = build_optimizer(model, training.optimizer), CrossEntropy(training.label_smoothing)
    train_step = TrainStep(model.train(), optimizer, training, dtype, objective)

    def step() -> float:
        result = train_step.step([batch], LEARNING_RATE)
        return result.loss / result.n_target_tokens

    return step


def word_tokenizer(vocab: int) -> Any:
    """Build a whitespace tokenizer of numbered words, so that a text of n words has n tokens."""
    from transom.config.data import PairTokenizerConfig
    from transom.data.tokenizer.special_tokens import TOKEN_NAMES
    from transom.data.tokenizer.tokenizer import Tokenizer

    text = " ".join(f"w{i}" for i in range(vocab - len(TOKEN_NAMES)))
    tokenizer = Tokenizer.train([text], PairTokenizerConfig(kind="whitespace", vocab_size=vocab))
    assert tokenizer.vocab_size == vocab
    return tokenizer


def _generate_transom(generator: Any, family: Family, rows: int, length: int) -> list[int]:
    prompts = [generator.tokenizer.decode(prompt) for prompt in random_tokens(rows, length - 1, family.config.vocab_size, 3).tolist()]
    continuations = generator.continuations(prompts, temperature=0.0, min_new_tokens=family.new - 1, max_new_tokens=family.new)
    return [best.n_tokens for best, *_ in continuations]


@torch.inference_mode()
def _forward_transom(model: Network, batch: Batch) -> float:
    if isinstance(batch, ImageBatch):
        batch = ImageBatch(batch.pixels.to(model.unembedding.weight.dtype), batch.labels, batch.sample_ids)
    return float(model(batch).float().log_softmax(-1)[0, 0])


def transformers_workloads(family: Family, compiled: bool) -> Workloads:
    """Return the transformers library's workloads."""
    from benchmarks.peers.training import build_training_steps, list_modes

    torch.manual_seed(1)
    model, batch = build_transformers_model(family), build_batch(family)
    inputs, labels = transformers_inputs(batch), batch.labels

    def logits() -> Tensor:
        logits: Tensor = model(**inputs).logits
        return logits if logits.dim() == 3 else logits[:, None]

    inference_model = copy.deepcopy(model).eval().requires_grad_(False)
    models = {mode: copy.deepcopy(inference_model).to(dtype) for mode, dtype in list_modes(compiled=False).items()}
    targets = labels if labels.dim() == 2 else labels[:, None]
    training_steps = build_training_steps(model.train(), logits, targets, compiled, family.training)
    workloads: Workloads = {("training", mode): step for mode, step in training_steps.items()}
    for rows, length in family.prompts:
        prompt = random_tokens(rows, length, family.config.vocab_size, 3)
        for mode, each in models.items():
            workloads[f"generation, batch {rows}", mode] = partial(_generate_transformers, each, prompt, family.new)
    if not family.prompts:
        workloads |= {("encoding", mode): partial(_forward_transformers, each, inputs) for mode, each in models.items()}
        for mode, each in models.items():
            if f"{mode} compiled" in training_steps:
                workloads["encoding", f"{mode} compiled"] = partial(_forward_transformers, torch.compile(each), inputs)
    return workloads


def transformers_inputs(batch: Batch) -> dict[str, Any]:
    """Return a batch as arguments of the transformers library's models."""
    match batch:
        case ImageBatch():
            return {"pixel_values": batch.pixels}
        case LanguageBatch():
            return {"input_ids": batch.decoder_input.tokens, "use_cache": False}
        case LabeledTextBatch():
            return {"input_ids": batch.source.tokens}
    raise AssertionError(batch)


@torch.inference_mode()
def _forward_transformers(model: Any, inputs: dict[str, Any]) -> float:
    dtype = next(model.parameters()).dtype
    inputs = {name: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
    return float(model(**inputs).logits.float().log_softmax(-1)[0, 0])


@torch.inference_mode()
def _generate_transformers(model: Any, prompt: Tensor, new: int) -> list[int]:
    mask = torch.ones_like(prompt)
    sequences = model.generate(prompt, attention_mask=mask, do_sample=False, min_new_tokens=new, max_new_tokens=new, pad_token_id=0)
    return [new_tokens.shape[0] for new_tokens in sequences[:, prompt.shape[1] :]]


def build_transformers_model(family: Family) -> nn.Module:
    """Build the transformers library's model of a family's shape, randomly initialized."""
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTForImageClassification,
    )

    c: Any = family.config
    sizes = {"hidden_size": c.d_model, "num_hidden_layers": c.n_layers, "num_attention_heads": c.n_heads, "intermediate_size": c.d_ff}
    encoder_dropout = {"hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": 0.0, "attn_implementation": "sdpa"}
    match family.name:
        case "gpt2" | "gpt-384" | "gpt2-small":
            return GPT2LMHeadModel(GPT2Config(
                vocab_size=c.vocab_size, n_positions=c.max_seq_len, n_embd=c.d_model, n_layer=c.n_layers, n_head=c.n_heads, n_inner=c.d_ff,
                resid_pdrop=c.dropout, embd_pdrop=c.dropout, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, attn_implementation="sdpa",
            ))  # fmt: skip
        case "llama":
            return LlamaForCausalLM(LlamaConfig(
                vocab_size=c.vocab_size, num_key_value_heads=c.n_kv_heads, max_position_embeddings=c.max_seq_len, rms_norm_eps=1e-6,
                tie_word_embeddings=False, attn_implementation="sdpa", **sizes,
            ))  # fmt: skip
        case "bert":
            return BertForSequenceClassification(BertConfig(
                vocab_size=c.vocab_size, max_position_embeddings=c.max_seq_len, num_labels=len(CLASSES), **sizes, **encoder_dropout,
            ))  # fmt: skip
        case _:
            return ViTForImageClassification(ViTConfig(
                image_size=c.image_size, patch_size=c.patch_size, num_labels=len(CLASSES), **sizes, **encoder_dropout,
            ))  # fmt: skip


def training_systems(family: Family, compiled: bool) -> dict[str, tuple[Any, ...]]:
    """Return by system that trains the family the function that builds its workloads, with its module and arguments."""
    systems: dict[str, tuple[Any, ...]] = {
        "transom": ("benchmarks.families", "transom_workloads", family),
        "transformers": ("benchmarks.families", "transformers_workloads", family, compiled),
    }
    if family.has_more_peers:
        from benchmarks.peers import gpt

        systems |= {name: ("benchmarks.peers.gpt", "workloads", name, family, compiled) for name in gpt.installed()}
    return systems


def family_tables(family: Family, rounds: int, threads: int, compiled: bool, peak: PeakRates) -> dict[str, list[Row]]:
    """Time the workloads of all systems in tokens or patches per second; generation counts only the new tokens."""
    systems = training_systems(family, compiled)
    if family.name == "gpt2-small":
        from benchmarks.peers import llama_cpp

        systems |= dict.fromkeys(llama_cpp.installed(), ("benchmarks.peers.llama_cpp", "workloads", family))
    if not family.prompts:
        from benchmarks.peers import onnx_runtime

        systems |= dict.fromkeys(onnx_runtime.installed(), ("benchmarks.peers.onnx_runtime", "workloads", family))
    tables = {}
    new_tokens = {f"generation, batch {rows}": rows * family.new for rows, _ in family.prompts}
    with start_workers(systems, threads) as timed_calls:
        for name in dict.fromkeys(name for _, (name, _) in timed_calls):
            calls = {(system, mode): seconds_of(call) for (system, (each, mode)), call in timed_calls.items() if each == name}
            products = matmul_workloads(peak) if name in COUNTED else {}
            quartiles_of = time_interleaved({**calls, **products}, rounds)
            peak_now = faster_peak(peak, quartiles_of) if products else peak
            tokens = new_tokens.get(name, family.rows * family.length)
            tables[name] = [
                row(system, mode, tokens, quartiles_of[system, mode])
                | utilization(family, name, mode, quartiles_of[system, mode].median, peak_now)
                for system, mode in calls
            ]
    for each in tables.get("training", []):
        each["step_memory_MiB"] = step_memory(systems[each["system"]], ("training", each["mode"]), threads)
    return {name: print_table(f"{family.name}: {name}", with_ratios(rows)) for name, rows in tables.items()}


def utilization(family: Family, workload: str, mode: str, seconds: float, peak: PeakRates) -> Row:
    """Return the FLOP/s of a step or an encoding as a fraction of the peak rate in its dtype, and that rate; nothing for generation."""
    if workload not in COUNTED:
        return {}
    flops, rate = family.flops.training if workload == "training" else family.flops.forward, peak_flops(peak, mode)
    return {"matmul_utilization": round(flops / seconds / rate, 3), "peak_gflops": round(rate / 1e9)}


def main(arguments: list[str] | None = None) -> None:
    """Measure the selected families, print their tables and write the results as JSON."""
    args = _parser().parse_args(arguments)
    threads = choose_threads().count
    torch.set_num_threads(threads)
    peak = measure_peak()
    command = " ".join(["python -m benchmarks.families", *(arguments or sys.argv[1:])])
    environment = describe_environment(command, threads, peak, LIBRARIES)
    print(json.dumps(environment, indent=1))
    chosen = [family for family in families(args.quick) if family.name in (args.only or FAMILIES)]
    result = read_earlier(args.out, environment)
    for family in chosen:
        result[family.name] = {"facts": environment, "tables": family_tables(family, args.rounds, threads, not args.no_compile, peak)}
        write_models(args.out, result, FAMILIES)


FAMILIES = [family.name for family in families(quick=True)]


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__, formatter_class=form)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, help="families to measure (default: all)")
    parser.add_argument("--no-compile", action="store_true", help="skip the torch.compile modes")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with tiny shapes and meaningless figures")
    parser.add_argument("--rounds", type=int, default=5, help="timings per system")
    parser.add_argument("--out", type=Path, help="JSON file of the results, which keeps other families of this processor")
    return parser


if __name__ == "__main__":
    main()
