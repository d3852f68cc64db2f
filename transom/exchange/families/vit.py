"""The Vision Transformer (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from transom.exchange.config_rows import Always, Choice, ConfigRow, Dropout, Ignored, Same
from transom.exchange.family import Family
from transom.exchange.rows_shared import ACTIVATIONS
from transom.exchange.tensor_rows import PATCH_KERNELS, Configs, TensorRow, WithAxes

OURS = "encoder.blocks.{i}"
FIELDS: tuple[ConfigRow, ...] = (
    Always({"norm.kind": "layernorm", "norm_placement": "pre", "position.kind": "learned", "pooling": "cls", "head_bias": True}),
    Same("d_model", "hidden_size", 768),
    Same("n_layers", "num_hidden_layers", 12),
    Same("n_heads", "num_attention_heads", 12),
    Same("d_ff", "intermediate_size", 3072),
    Same("image_size", "image_size", 224),
    Same("patch_size", "patch_size", 16),
    Same("channels", "num_channels", 3),
    Same("norm.eps", "layer_norm_eps", 1e-12),
    Choice("feed_forward.kind", "hidden_act", ACTIVATIONS, "gelu"),
    Same("attention.qkv_bias", "qkv_bias", True),
    Dropout("dropout", ("hidden_dropout_prob",)),
    Dropout("attention_dropout", ("attention_probs_dropout_prob",)),
    Ignored(("pooler_act", "pooler_output_size")),
)


def tensors(base: str) -> tuple[TensorRow, ...]:
    """Return the rows of everything but the head; ``base`` is the first part of the foreign names."""
    block = f"{base}.encoder.layer.{{i}}"
    return (
        TensorRow("embedding.cls", f"{base}.embeddings.cls_token", WithAxes(2)),
        TensorRow("embedding.position.table.weight", f"{base}.embeddings.position_embeddings", WithAxes(1)),
        TensorRow("embedding.projection.weight", f"{base}.embeddings.patch_embeddings.projection.weight", PATCH_KERNELS),
        TensorRow("embedding.projection.bias", f"{base}.embeddings.patch_embeddings.projection.bias"),
        TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{block}.layernorm_{{before,after}}.{{weight,bias}}"),
        TensorRow(f"{OURS}.attn.{{q,k,v}}.{{weight,bias}}", f"{block}.attention.attention.{{query,key,value}}.{{weight,bias}}"),
        TensorRow(
            f"{OURS}.{{attn.o,ff.up,ff.down}}.{{weight,bias}}",
            f"{block}.{{attention.output.dense,intermediate.dense,output.dense}}.{{weight,bias}}",
        ),
        TensorRow("encoder.norm.{weight,bias}", f"{base}.layernorm.{{weight,bias}}"),
    )


VIT = Family(
    "vit",
    "ViTForImageClassification",
    "vision-transformer",
    FIELDS,
    (*tensors("vit"), TensorRow("unembedding.{weight,bias}", "classifier.{weight,bias}")),
    prefix="vit.",
    auto_class="AutoModelForImageClassification",
    pipeline="image-classification",
)


class TwoHeads:
    """The heads of the class token and of the distillation token: our output layer is their mean, on both vectors one after the other."""

    def read(self, foreign: Sequence[Tensor], like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        if foreign[0].dim() == 1:
            return [(foreign[0] + foreign[1]) / 2]
        return [torch.cat(list(foreign), 1) / 2]

    def write(self, ours: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        """Return both heads; the bias is the same in both, since only the mean of the logits counts."""
        return [ours[0], ours[0].clone()] if ours[0].dim() == 1 else [2 * half for half in ours[0].chunk(2, 1)]


DISTILLED = TensorRow("embedding.distillation", "deit.embeddings.distillation_token", WithAxes(2))
DEIT = replace(
    VIT,
    model_type="deit",
    architecture="DeiTForImageClassification",
    fields=(*FIELDS, Always({"distillation": "token"})),
    tensors=(*tensors("deit"), DISTILLED, TensorRow("unembedding.{weight,bias}", "classifier.{weight,bias}")),
    prefix="deit.",
)
DEIT_WITH_TEACHER = replace(
    DEIT,
    architecture="DeiTForImageClassificationWithTeacher",
    fields=(*FIELDS, Always({"distillation": "head"})),
    tensors=(
        *tensors("deit"),
        DISTILLED,
        TensorRow("unembedding.{weight,bias}", "[cls_classifier,distillation_classifier].{weight,bias}", TwoHeads()),
    ),
)
FAMILIES = (VIT, DEIT, DEIT_WITH_TEACHER)
