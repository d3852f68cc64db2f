"""The parameters of presets are those of the transformers library's models of the same shapes, built on the meta device."""

import pytest
import torch
import transformers

from tests.tiers import every
from transom.config.presets import load_preset

LLAMA = {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32_000}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MIXTRAL = {"num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 32_000}
QWEN = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
GEMMA = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256_000,
}
T5 = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32_128}
BART = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12, "decoder_attention_heads": 12}
BART |= {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "vocab_size": 50_265}
ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}

MODELS = {
    "gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {}),
    "gpt2-medium": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-base": ("BertForPreTraining", "BertConfig", {}),
    "bert-large": ("BertForPreTraining", "BertConfig", LARGE),
    "roberta-base": ("RobertaForMaskedLM", "RobertaConfig", ROBERTA),
    "roberta-large": ("RobertaForMaskedLM", "RobertaConfig", ROBERTA | LARGE),
    "vit-base-16": ("ViTForImageClassification", "ViTConfig", {"num_labels": 1000}),
    "vit-large-16": ("ViTForImageClassification", "ViTConfig", {"num_labels": 1000} | LARGE),
    "t5-base": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart-base": ("BartForConditionalGeneration", "BartConfig", BART),
    "llama-7b": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama-65b": (
        "LlamaForCausalLM",
        "LlamaConfig",
        LLAMA | {"hidden_size": 8192, "intermediate_size": 22_016, "num_hidden_layers": 80, "num_attention_heads": 64},
    ),
    "llama-2-70b": (
        "LlamaForCausalLM",
        "LlamaConfig",
        LLAMA
        | {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8},
    ),
    "llama-3-8b": ("LlamaForCausalLM", "LlamaConfig", LLAMA | MIXTRAL | {"vocab_size": 128_256}),
    "llama-3.1-8b": ("LlamaForCausalLM", "LlamaConfig", LLAMA | MIXTRAL | {"vocab_size": 128_256}),
    "mistral-7b": ("MistralForCausalLM", "MistralConfig", {}),
    "mixtral-8x7b": ("MixtralForCausalLM", "MixtralConfig", MIXTRAL),
    "qwen3-0.6b": ("Qwen3ForCausalLM", "Qwen3Config", QWEN),
    "gemma-2-2b": ("Gemma2ForCausalLM", "Gemma2Config", GEMMA),
}
"""Model class, configuration class, and fields that differ from the library's defaults."""


@pytest.mark.parametrize("name", every(4, MODELS, long=4))
def test_released_counts_are_those_of_the_transformers_library(name: str) -> None:
    model_class, config_class, fields = MODELS[name]
    with torch.device("meta"):
        model = getattr(transformers, model_class)(getattr(transformers, config_class)(**fields))
    assert sum(parameter.numel() for parameter in model.parameters()) == load_preset(name).released
