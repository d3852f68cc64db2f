"""docs/notation.md names every axis, size, site and special symbol there is, and none that is not."""

import ast
import re

from tests.size import ROOT
from transom.config.components import NORM_PLACEMENTS, MultiHeadAttentionConfig, RmsNormConfig
from transom.config.depth import MixtureOfDepthsConfig
from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig, TextClassifierConfig, TextEmbedderConfig
from transom.config.moe import MoeConfig
from transom.config.recurrent import RecurrentDecoderConfig, RecurrentSeq2SeqConfig
from transom.config.schema import derived_formula
from transom.config.vision import ConvolutionalNetworkConfig, VisionTransformerConfig
from transom.data.tokenizer.special_tokens import TOKEN_NAMES
from transom.inspection.activation_sites import list_sites
from transom.tasks.tagging.schema import TokenTaggerConfig

PAGE = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return one section of the page."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def names_in_first_column(title: str) -> set[str]:
    """Return the code words of a section's first column."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_sizes_are_the_schemas() -> None:
    of_text = (
        Seq2SeqConfig,
        DecoderConfig,
        MaskedLMConfig,
        TextClassifierConfig,
        TokenTaggerConfig,
        TextEmbedderConfig,
        RecurrentSeq2SeqConfig,
        RecurrentDecoderConfig,
    )
    families = (*of_text, VisionTransformerConfig, ConvolutionalNetworkConfig)
    fields = [field for family in families for field in family.model_fields.items()]
    numbers = {name for name, field in fields if isinstance(field.default, int | float) or field.default is None or derived_formula(field)}
    assert names_in_first_column("Sizes") == numbers - {"scale_embeddings", "tie_embeddings", "embedding_norm", "bidirectional"}


def test_axes_of_models_and_layers_are_on_the_page() -> None:
    used: set[str] = set()
    for room in ("layers", "models", "data"):
        for path in (ROOT / "transom" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Float", "Int", "Bool"):
                    text = ast.unparse(node.slice).rsplit(",", 1)[-1].strip(" )'\"")
                    used |= {axis.lstrip("#*") for axis in text.split()}
    known = names_in_first_column("Axes") | names_in_first_column("Sizes")
    assert {axis for axis in used if axis.isidentifier() and axis != "axes"} <= known


def test_every_site_is_on_the_page_and_no_other() -> None:
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 8}
    both_sides = Seq2SeqConfig.model_validate(
        sizes | {"n_encoder_layers": 1, "n_decoder_layers": 1, "source_vocab_size": 5, "target_vocab_size": 5}
    )
    real = {
        re.sub(r"\.\d+(?=\.|$)", ".N", site.address)
        for config in (
            both_sides,
            *(
                family.model_validate(sizes | {"n_layers": 1, "vocab_size": 5} | more)
                for family, more in (
                    (DecoderConfig, {}),
                    (MaskedLMConfig, {}),
                    (TextClassifierConfig, {"classes": ("a", "b")}),
                    (TokenTaggerConfig, {"classes": ("a", "b")}),
                    (TextEmbedderConfig, {}),
                )
            ),
            VisionTransformerConfig.model_validate(sizes | {"n_layers": 1, "classes": ("a", "b"), "stem": "convolutional"}),
        )
        for changes in (
            *({"norm_placement": kind} for kind in NORM_PLACEMENTS),
            {"attention": MultiHeadAttentionConfig(qk_norm=RmsNormConfig())},
            {"feed_forward": MoeConfig(n_shared_experts=1)},
            {"depth": MixtureOfDepthsConfig(every=1)},
        )
        for site in list_sites(config.model_copy(update=changes))
    } | {
        site.address.replace(".0.", ".N.")
        for attention in ("additive", "luong")
        for site in list_sites(
            RecurrentSeq2SeqConfig.model_validate({"d_model": 8, "source_vocab_size": 5, "target_vocab_size": 5, "attention": attention})
        )
    }
    named = set()
    for row in section("Sites").splitlines():
        if row.startswith("| `"):
            words = re.findall(r"`([^`]+)`", row.split("|")[1])
            named |= {word if not word.startswith(".") else words[0].rsplit(".", 1)[0] + word for word in words}
    assert named <= real
    endings = {name.rsplit(".", 1)[-1] for name in named}
    assert {address for address in real if address.rsplit(".", 1)[-1] not in endings} == set()


def test_special_symbols() -> None:
    rows = re.findall(r"\| `(\[\w+\])` \| (\d) \|", section("Special symbols"))
    assert {int(number): name for name, number in rows} == TOKEN_NAMES
