"""Tiny random models of the transformers library, one per family and feature, and that library in float64."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

VOCAB = 64
LENGTH = 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
}
SHARED_HEADS = {**SIZES, "num_key_value_heads": 2}
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 3,
}
PAIRS = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class ForeignCase:
    """A tiny model of the library.

    Attributes:
        name: name of the case: the family, and a feature after a hyphen.
        architecture: class of the model.
        options: fields of its configuration.
        from_data: fields of our configuration that other files of a folder would determine.
    """

    name: str
    architecture: str
    options: Mapping[str, Any] = field(default_factory=dict)
    from_data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The library's name of the family."""
        return self.name.split("-")[0]

    def build(self) -> Any:
        """Build the model with random weights, biases and gains included."""
        cls = getattr(transformers, self.architecture)
        torch.manual_seed(1)
        config = cls.config_class(**self.options)
        config._attn_implementation = config._experts_implementation = "eager"
        model = cls(config).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, 0.05, 0.3)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                nn.init.normal_(buffer, 0.05, 0.3)
        return model

    def save(self, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
        """Write the model's folder."""
        self.build().to(dtype).save_pretrained(folder, **options)
        return folder


def _rope(**options: Any) -> dict[str, Any]:
    return {**SHARED_HEADS, "rope_parameters": {"rope_theta": 10000.0, **options}}


CLASSES = {"classes": ("LABEL_0", "LABEL_1", "LABEL_2")}
MASK = {"mask_token_id": 4}
PIXELS = {"pixel_mean": (0.0, 0.0, 0.0), "pixel_std": (1.0, 1.0, 1.0)}
CASES = (
    ForeignCase("gpt2", "GPT2LMHeadModel", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}),
    ForeignCase(
        "gpt2-untied",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCAB,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": LENGTH,
            "n_inner": 40,
            "tie_word_embeddings": False,
            "activation_function": "relu",
        },
    ),
    ForeignCase("gpt_neox", "GPTNeoXForCausalLM", SIZES),
    ForeignCase("gpt_neox-sequential", "GPTNeoXForCausalLM", {**SIZES, "use_parallel_residual": False, "attention_bias": False}),
    ForeignCase("llama", "LlamaForCausalLM", SHARED_HEADS),
    ForeignCase("llama-tied", "LlamaForCausalLM", {**SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ForeignCase("llama-linear", "LlamaForCausalLM", _rope(rope_type="linear", factor=2.0)),
    ForeignCase("llama-dynamic", "LlamaForCausalLM", _rope(rope_type="dynamic", factor=2.0)),
    ForeignCase("llama-yarn", "LlamaForCausalLM", _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    ForeignCase(
        "llama-llama3",
        "LlamaForCausalLM",
        _rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8),
    ),
    ForeignCase(
        "llama-longrope",
        "LlamaForCausalLM",
        _rope(
            rope_type="longrope",
            factor=2.0,
            short_factor=[1.0, 1.5, 2.0, 2.5],
            long_factor=[1.0, 2.0, 4.0, 8.0],
            original_max_position_embeddings=16,
        ),
    ),
    ForeignCase("mistral", "MistralForCausalLM", {**SHARED_HEADS, "sliding_window": 8}),
    ForeignCase("mistral-full", "MistralForCausalLM", {**SHARED_HEADS, "sliding_window": None, "head_dim": 16}),
    ForeignCase("mixtral", "MixtralForCausalLM", {**SHARED_HEADS, "num_local_experts": 4}),
    ForeignCase("qwen2", "Qwen2ForCausalLM", SHARED_HEADS),
    ForeignCase(
        "qwen2-window", "Qwen2ForCausalLM", {**SHARED_HEADS, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    ),
    ForeignCase("qwen3", "Qwen3ForCausalLM", {**SHARED_HEADS, "head_dim": 16, "tie_word_embeddings": True}),
    ForeignCase(
        "gemma2", "Gemma2ForCausalLM", {**SHARED_HEADS, "hidden_size": 64, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
    ),
    ForeignCase(
        "gemma2-scaled",
        "Gemma2ForCausalLM",
        {
            **SHARED_HEADS,
            "hidden_size": 64,
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    ForeignCase("phi", "PhiForCausalLM", SIZES),
    ForeignCase("bert-masked", "BertForMaskedLM", SIZES, MASK),
    ForeignCase("bert-classes", "BertForSequenceClassification", {**SIZES, "num_labels": 3}, {**CLASSES, **MASK}),
    ForeignCase("roberta-masked", "RobertaForMaskedLM", {**SIZES, "type_vocab_size": 1}, MASK),
    ForeignCase("roberta-classes", "RobertaForSequenceClassification", {**SIZES, "num_labels": 3}, {**CLASSES, **MASK}),
    ForeignCase(
        "distilbert-masked",
        "DistilBertForMaskedLM",
        {"vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": LENGTH},
        MASK,
    ),
    ForeignCase(
        "distilbert-classes",
        "DistilBertForSequenceClassification",
        {
            "vocab_size": VOCAB,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": LENGTH,
            "num_labels": 3,
        },
        {**CLASSES, **MASK},
    ),
    ForeignCase("bert-vectors", "BertModel", SIZES, MASK),
    ForeignCase("roberta-vectors", "RobertaModel", SIZES, MASK),
    ForeignCase(
        "distilbert-vectors",
        "DistilBertModel",
        {"vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": LENGTH},
        MASK,
    ),
    ForeignCase("vit", "ViTForImageClassification", IMAGES, {**CLASSES, **PIXELS}),
    ForeignCase("vit-no-bias", "ViTForImageClassification", {**IMAGES, "qkv_bias": False}, {**CLASSES, **PIXELS}),
    ForeignCase("deit", "DeiTForImageClassification", IMAGES, {**CLASSES, **PIXELS}),
    ForeignCase("deit-distilled", "DeiTForImageClassificationWithTeacher", IMAGES, {**CLASSES, **PIXELS}),
    ForeignCase("marian", "MarianMTModel", {**PAIRS, "scale_embedding": True, "activation_function": "swish"}),
    ForeignCase("bart", "BartForConditionalGeneration", PAIRS),
    ForeignCase(
        "t5", "T5ForConditionalGeneration", {"vocab_size": VOCAB, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    ),
    ForeignCase(
        "t5-v1.1",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 48,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 2,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
)


class LibraryInFloat64(TorchFunctionMode):
    """Computes in float64 what the library computes in float32 whatever the model's dtype: norms, angles and the softmax of scores."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)


def inputs(kind: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return random inputs for both sides, by the library's names."""
    torch.manual_seed(2)
    if kind == "vision-transformer":
        return {"pixel_values": torch.rand(2, 3, 16, 16, dtype=dtype)}
    tokens = torch.randint(5, VOCAB, (3, 24))
    if kind == "seq2seq":
        return {"input_ids": tokens, "decoder_input_ids": torch.randint(5, VOCAB, (3, 11))}
    return {"input_ids": tokens}
