import pytest
import torch
from torch import Tensor, nn

from transom.config.model import Seq2SeqConfig
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.errors import ConfigError
from transom.inspection.activation_sites import list_sites, select_sites
from transom.layers.attention import Attention
from transom.layers.block import Block, PostNormBlock, PreNormBlock
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward
from transom.layers.norm import LayerNorm
from transom.layers.observe import ActivationRecorder, Edit
from transom.models.build import build_model

SITES = {
    Embedding: ["resid"],
    Attention: ["k", "v", "q", "z"],
    LayerNorm: ["x"],
    FeedForward: ["hidden"],
    PreNormBlock: ["resid_pre", "resid_mid", "resid_post"],
    PostNormBlock: ["resid_pre", "resid_mid", "resid_post"],
}
"""The sites that the design asks for, by the kind of module that owns them."""

TWO_KEYS = [[5, 3, 9, 2], [7, 2]]


def config(placement: str = "post", **fields: object) -> Seq2SeqConfig:
    """Describe a model of two encoder blocks and one decoder block."""
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_encoder_layers": 2, "n_decoder_layers": 1}
    return Seq2SeqConfig(**sizes, source_vocab_size=11, target_vocab_size=11, norm_placement=placement, **fields)


def tiny(placement: str = "post", **fields: object) -> nn.Module:
    """Build it in float64, in evaluation mode."""
    torch.manual_seed(1)
    return build_model(config(placement, **fields)).double().eval()


def batch() -> TranslationBatch:
    """Make two pairs, the second with padding."""
    target = PaddedSequences.pad([[1, 4, 8], [1, 6]])
    return TranslationBatch(PaddedSequences.pad(TWO_KEYS), target, target.tokens, (0, 1))


def recorded(model: nn.Module, edits: dict[str, Edit] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the model with every site recorded."""
    recorder = ActivationRecorder(["*"], edits or {})
    return model(batch(), recorder), recorder.activations


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_every_site_of_the_design_is_tapped(placement: str) -> None:
    expected = set()
    for path, module in tiny(placement).named_modules():
        expected |= {f"{path}.{name}" for name in SITES.get(type(module), [])}
        if isinstance(module, Block) and module.cross is not None:
            expected.add(f"{path}.resid_cross")
    found = [site.address for site in list_sites(config(placement))]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_addresses_of_a_small_model_in_the_order_of_its_pass() -> None:
    found = [site.address for site in list_sites(config())]
    assert found[:6] == [
        "source_embedding.resid",
        "encoder.blocks.0.resid_pre",
        "encoder.blocks.0.attn.k",
        "encoder.blocks.0.attn.v",
        "encoder.blocks.0.attn.q",
        "encoder.blocks.0.attn.z",
    ]
    assert found[-1] == "decoder.blocks.0.resid_post"


def test_sites_tell_their_shapes_and_draw_no_random_number() -> None:
    before = torch.get_rng_state()
    shapes = dict(list_sites(config(d_head=3, d_value=5)))
    assert torch.equal(torch.get_rng_state(), before)
    assert shapes["encoder.blocks.1.attn.k"] == (1, 2, 3, 3)
    assert shapes["decoder.blocks.0.cross.v"] == (1, 2, 3, 5)
    assert shapes["decoder.blocks.0.cross.q"] == (1, 2, 2, 3)
    assert shapes["decoder.blocks.0.ff.hidden"] == (1, 2, 12)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_looking_changes_nothing(placement: str) -> None:
    model = tiny(placement, dropout=0.3, attention_dropout=0.2, feed_forward_dropout=0.1).train()
    results = []
    for observer in (None, ActivationRecorder(["*"])):
        torch.manual_seed(7)
        model.zero_grad()
        logits = model(batch(), observer)
        logits.square().sum().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(unseen, seen) for unseen, seen in zip(*results, strict=True))


def test_only_what_is_wanted_is_kept() -> None:
    recorder = ActivationRecorder(["encoder.blocks.*.attn.q", "decoder.blocks.0.resid_cross"])
    tiny()(batch(), recorder)
    assert list(recorder.activations) == ["encoder.blocks.0.attn.q", "encoder.blocks.1.attn.q", "decoder.blocks.0.resid_cross"]


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_an_edit_changes_what_follows_and_only_that(placement: str) -> None:
    model = tiny(placement)
    plain_logits, plain = recorded(model)
    for address, x in plain.items():
        value = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3)).requires_grad_()
        logits, edited = recorded(model, {address: Edit(value)})
        depends = [place for place in edited if _depends(edited[place], value)]
        changed = [place for place in edited if not torch.equal(edited[place], plain[place])]
        assert torch.equal(edited[address], value)
        assert changed == depends
        assert _depends(logits, value) and not torch.equal(logits, plain_logits)


def _depends(x: Tensor, value: Tensor) -> bool:
    return torch.autograd.grad(x.sum() * 1.0, value, retain_graph=True, allow_unused=True)[0] is not None


def test_an_edit_of_keys_leaves_values_and_queries() -> None:
    model, address = tiny(), "encoder.blocks.1.attn.k"
    plain = recorded(model)[1]
    edited = recorded(model, {address: Edit(torch.zeros(()))})[1]
    changed = [place for place in plain if not torch.equal(plain[place], edited[place])]
    assert changed[:2] == [address, "encoder.blocks.1.attn.z"]
    assert not edited[address].any()


def test_an_edit_at_a_place_changes_the_future_only() -> None:
    model = tiny()
    where = (torch.arange(3) == 1)[:, None]
    plain = model(batch())
    edited = model(batch(), ActivationRecorder((), {"target_embedding.resid": Edit(torch.ones(8), where)}))
    assert torch.equal(edited[:, 0], plain[:, 0])
    assert (edited[:, 1:] != plain[:, 1:]).all(-1)[0].all()


def test_several_edits_act_together() -> None:
    model = tiny()
    edits = {f"decoder.blocks.0.{part}.z": Edit(torch.zeros(())) for part in ("attn", "cross")}
    kept = recorded(model, edits)[1]
    assert not kept["decoder.blocks.0.attn.z"].any() and not kept["decoder.blocks.0.cross.z"].any()


def test_an_edit_enters_as_an_input_and_has_a_gradient() -> None:
    value = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    tiny()(batch(), ActivationRecorder((), {"encoder.blocks.1.resid_post": Edit(value)})).square().sum().backward()
    assert value.grad is not None and value.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("edit", "found"),
    [(Edit(torch.ones(3)), r"\(3,\)"), (Edit(torch.ones(8), torch.ones(5, dtype=torch.bool)), r"\(8,\) and where of shape \(5,\)")],
)
def test_an_edit_that_does_not_fit_is_refused(edit: Edit, found: str) -> None:
    for site in ("source_embedding.resid", "encoder.blocks.1.resid_mid"):
        expected = (
            rf"edit at {site}: expected a value that broadcasts to the shape \(2, 4, 8\) of the site, found a value of shape {found};"
        )
        with pytest.raises(ConfigError, match=expected):
            recorded(tiny(), {site: edit})


def test_select_finds_by_pattern_in_order() -> None:
    assert select_sites(config(), ["*.cross.q", "encoder.blocks.1.attn.?"]) == [
        *(f"encoder.blocks.1.attn.{name}" for name in "kvqz"),
        "decoder.blocks.0.cross.q",
    ]


def test_select_names_the_neighbours_of_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"'encoder.blocks.1.atn.q'; the closest sites are encoder.blocks.1.attn.q,"):
        select_sites(config(), ["encoder.blocks.1.atn.q"])
