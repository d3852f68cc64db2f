"""docs/notation.md agrees with the source: where terms are defined, and every layer, axis, size, site and special symbol."""

import ast
import re
from importlib import import_module
from typing import NamedTuple

import pytest
from torch import nn

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


PAPER = r"[\w .&,-]+ \d{4}(?:, (?:eq\.|section|figure) [\d.ab-]+)?"
"""A citation: authors, year and perhaps the equation, section or figure."""


class Term(NamedTuple):
    """A row of the glossary."""

    term: str
    symbol: str
    meaning: str
    paper: str
    path: str
    name: str


def glossary() -> list[Term]:
    """Read the rows of the tables with five columns."""
    rows = re.findall(r"^\| (.+?) \| ?(.*?) ?\| (.+?) \| ?(.*?) ?\| `(transom/[\w/.]+)` `([\w.]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(re.findall(r"`transom/[\w/]+\.py` `", PAGE))
    return [Term(*row) for row in rows]


def test_each_term_is_defined_where_the_page_says() -> None:
    for term in glossary():
        nodes: list[ast.stmt] = ast.parse((ROOT / term.path).read_text(encoding="utf-8")).body
        for part in term.name.split("."):
            found = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
            assert found, (term.path, term.name)
            nodes = found[0].body


def test_each_term_has_a_meaning_and_papers_have_one_form() -> None:
    terms = glossary()
    assert len({term.term for term in terms}) == len(terms) > 80
    for term in terms:
        assert len(term.meaning) >= 20 and not term.meaning.endswith("."), term
        assert not term.paper or all(re.fullmatch(PAPER, paper) for paper in term.paper.split("; ")), term


SUPPORTING = {
    *(
        "Approximation",
        "ApproximateAttention",
        "FeatureMapAttention",
        "TabulatedPositionEncoding",
        "PositionEncoding",
        "Norm",
        "SequentialBlock",
    ),
    *("SandwichResidualConnection", "Stack", "Embedding", "ChannelAttention", "ConvBlock", "PixelNormalization"),
    *("PlainDecoder", "AttendingDecoder", "AdditiveDecoder", "DotAttention", "SourceAttention"),
    *("RecurrentEncoder", "RecurrentEncoderLayer", "RecurrentStack", "RecurrentEncoderDecoder", "RecurrentLanguageModel"),
    *("GenerativeModel", "Seq2SeqModel", "LanguageModel", "MaskedEncoderTransformer", "TextClassifierTransformer", "ConvolutionalNetwork"),
}
"""Base classes and parts of what the glossary explains."""


def test_every_layer_and_model_is_a_term() -> None:
    terms = {term.name.split(".")[0] for term in glossary()}
    modules = set()
    for package in ("layers", "models"):
        for path in (ROOT / "transom" / package).rglob("*.py"):
            module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            modules |= {
                name
                for name, value in vars(module).items()
                if isinstance(value, type)
                and issubclass(value, nn.Module)
                and value.__module__ == module.__name__
                and not name.startswith("_")
            }
    assert modules - terms == SUPPORTING


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
    assert names_in_first_column("Sizes") == numbers - {
        "scale_embeddings",
        "tie_embeddings",
        "embedding_norm",
        "pooler",
        "bidirectional",
        "multi_label",
    }


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


@pytest.mark.long
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
