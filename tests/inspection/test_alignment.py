from typing import Any

import pytest
import torch
from torch import nn

from tests.models.tiny import seq2seq
from transom.config.data import PairTokenizerConfig as TokenizerConfig
from transom.config.recurrent import RecurrentSeq2SeqConfig
from transom.data.batch import translation_batch
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError, DataError
from transom.inspection.alignment import align, choose_alignment_layer, cross_attention_weights, merge_subwords
from transom.layers.observe import ActivationRecorder
from transom.models.build import build_model

PAIRS = Pairs(["the red house", "a house and the red cat"] * 2, ["das rote Haus", "ein Haus und die rote Katze"] * 2, "made up")


def tiny(tokenizers: Tokenizers, **fields: Any) -> nn.Module:
    """Build a random model for these tokenizers."""
    torch.manual_seed(4)
    vocabulary = {"source_vocab_size": tokenizers.source.vocab_size, "target_vocab_size": tokenizers.target.vocab_size}
    sizes = {"n_decoder_layers": 3, "max_seq_len": 512, "tie_embeddings": "decoder"}
    return build_model(seq2seq(**{**sizes, **fields, **vocabulary})).eval()


def recurrent(tokenizers: Tokenizers, attention: object) -> nn.Module:
    """Build a random recurrent network for these tokenizers."""
    torch.manual_seed(4)
    vocabulary = {"source_vocab_size": tokenizers.source.vocab_size, "target_vocab_size": tokenizers.target.vocab_size}
    config = RecurrentSeq2SeqConfig.model_validate({"d_model": 8, "tie_embeddings": "decoder", "attention": attention} | vocabulary)
    return build_model(config).eval()


def trained(kind: str = "bpe", joint: bool = False) -> Tokenizers:
    """Learn tokenizers from a few sentences."""
    return Tokenizers.train(PAIRS, TokenizerConfig(kind=kind, vocab_size=270, joint=joint))


def test_weights_are_a_distribution_over_the_source_for_each_target_symbol() -> None:
    tokenizers = trained()
    source, target = tokenizers.source.encode("the red house"), tokenizers.target.encode("das rote Haus")
    weights = cross_attention_weights(tiny(tokenizers), source, target)
    assert weights.shape == (3, 2, len(target) + 1, len(source) + 1)
    assert torch.allclose(weights.sum(-1), torch.ones(()))


def test_a_row_is_decided_before_its_symbol_is_seen() -> None:
    tokenizers = trained()
    model, source = tiny(tokenizers), tokenizers.source.encode("the red house")
    first, second = (cross_attention_weights(model, source, tokenizers.target.encode(target)) for target in ("das Haus", "das Katze"))
    same = len(tokenizers.target.encode("das"))
    assert torch.allclose(first[:, :, : same + 1], second[:, :, : same + 1], atol=1e-6)
    assert not torch.allclose(first[:, :, same + 1], second[:, :, same + 1], atol=1e-6)


@pytest.mark.parametrize("kind", ["bpe", "char", "whitespace"])
@pytest.mark.parametrize("joint", [True, False])
def test_sub_words_are_merged_to_words(kind: str, joint: bool) -> None:
    tokenizers = trained(kind, joint)
    found = align(tiny(tokenizers), tokenizers, "the red house", "die rote Katze")
    assert found.source == ("the", "red", "house", "[EOS]")
    assert found.target == ("die", "rote", "Katze", "[EOS]")
    assert found.weights.shape == (4, 4)
    assert torch.allclose(found.weights.sum(-1), torch.ones(()))


def test_pieces_stay_apart_where_asked() -> None:
    tokenizers = trained()
    pieces = tokenizers.source.encode("the red house")
    model = tiny(tokenizers)
    found = align(model, tokenizers, "the red house", "die rote Katze", layer=1, words=False)
    assert found.source == (*tokenizers.source.symbols(pieces), "[EOS]")
    assert torch.equal(found.weights, cross_attention_weights(model, pieces, tokenizers.target.encode("die rote Katze"))[1].mean(0))
    assert found.origin == "decoder.blocks.1.cross, mean of 2 heads"


def test_empty_sentences_have_their_end() -> None:
    tokenizers = trained()
    found = align(tiny(tokenizers), tokenizers, "", "")
    assert (found.source, found.target, found.weights.tolist()) == (("[EOS]",), ("[EOS]",), [[1.0]])


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there_is_refused(layer: int) -> None:
    tokenizers = trained()
    with pytest.raises(ConfigError, match=f"from 0 to 2, found {layer}"):
        align(tiny(tokenizers), tokenizers, "a", "a", layer=layer)


def test_a_sentence_that_is_too_long_is_refused() -> None:
    tokenizers = trained("whitespace")
    model = tiny(tokenizers, max_seq_len=4)
    assert len(align(model, tokenizers, "a a a", "ein ein ein").source) == 4
    with pytest.raises(DataError, match="a target of at most 3 tokens to align, found 4"):
        align(model, tokenizers, "a a a", "ein ein ein ein")


def test_dropout_is_not_looked_at() -> None:
    with pytest.raises(AssertionError, match="eval"):
        cross_attention_weights(tiny(trained()).train(), [3], [3])


@pytest.mark.parametrize("attention", ["additive", "luong", {"kind": "luong", "score": "dot", "input_feeding": False}])
def test_recurrent_networks_align_by_their_one_attention(attention: object) -> None:
    tokenizers = trained()
    model = recurrent(tokenizers, attention)
    found = align(model, tokenizers, "the red house", "die rote Katze")
    assert (found.source[-1], found.target, found.origin) == ("[EOS]", ("die", "rote", "Katze", "[EOS]"), "decoder.cross")
    assert torch.allclose(found.weights.sum(-1), torch.ones(()))
    source, target = tokenizers.source.encode("the red house"), tokenizers.target.encode("die rote Katze")
    assert cross_attention_weights(model, source, target).shape == (1, 1, len(target) + 1, len(source) + 1)
    with pytest.raises(ConfigError, match="from 0 to 0, found 1"):
        align(model, tokenizers, "a", "a", layer=1)


def test_without_attention_nothing_can_be_aligned() -> None:
    tokenizers = trained()
    with pytest.raises(ConfigError, match=r"a model with cross-attention, found model\.attention\.kind = 'none'"):
        align(recurrent(tokenizers, "none"), tokenizers, "a", "a")


def test_merge_sums_over_the_source_and_averages_over_the_target() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0]])
    assert torch.allclose(merge_subwords(weights, [0, 0, 1], [0, 0, 1]), torch.tensor([[0.45, 0.55], [0.0, 1.0]]))


def test_the_clearest_layer_finds_every_source_symbol() -> None:
    one_to_one = torch.eye(4).expand(2, 4, 4)
    spread = torch.full((2, 4, 4), 0.25)
    sink = torch.zeros(2, 4, 4)
    sink[..., 3] = 1.0
    blurred = 0.5 * one_to_one + 0.5 * spread
    assert choose_alignment_layer(torch.stack([sink, spread, one_to_one, blurred])) == 2
    assert choose_alignment_layer(torch.stack([sink, blurred, spread])) == 1


@pytest.mark.parametrize("shift", [-9.0, -1.0, 9.0], ids=["none", "some", "all"])
def test_tokens_that_pass_a_block_by_attend_to_nothing_there(shift: float) -> None:
    """Of a mixture of depths: their rows are 0, the others' are what the block computes, whoever chooses it."""
    tokenizers = trained()
    model = tiny(tokenizers, depth={"kind": "mod", "every": 2})
    router = model.decoder.blocks[1].depth
    torch.nn.init.normal_(router.map.weight)
    torch.nn.init.constant_(router.map.bias, shift)
    recorder = ActivationRecorder(["decoder.blocks.1.depth.score"])
    source, target = tokenizers.source.encode("the red house"), tokenizers.target.encode("das rote Haus")
    model(translation_batch([source], [target], [0]), recorder)
    chosen = recorder.activations["decoder.blocks.1.depth.score"][0] > 0
    weights = cross_attention_weights(model, source, target)
    assert weights.shape == (3, 2, len(target) + 1, len(source) + 1)
    assert torch.allclose(weights[1].sum(-1), chosen.float().expand(2, -1)) and torch.allclose(weights[[0, 2]].sum(-1), torch.tensor(1.0))
    assert {-9.0: not chosen.any(), -1.0: chosen.any() and not chosen.all(), 9.0: chosen.all()}[shift]
    assert align(model, tokenizers, "the red house", "das rote Haus", layer=1).weights.shape == (4, 4)
