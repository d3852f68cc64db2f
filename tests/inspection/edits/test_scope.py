"""Edits hold for every pass inside their block and for no other; one that changes nothing is an error."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import transom
from tests.decoding.test_translator import translator
from tests.inspection.edits.by_hand import MODELS, STACKS, Change, build, by_hand, softmax_of_visible
from tests.inspection.test_observed_graph import config as observed_config
from tests.inspection.test_observed_graph import nodes
from tests.inspection.test_trace import model_of
from tests.models.combinations import FAMILIES
from tests.tiers import every
from transom.config.data import TokenizerConfig
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.translator import Translation, Translator
from transom.errors import ConfigError
from transom.files.atomic_io import json_bytes
from transom.inspection.derive_attention import AttentionInputs
from transom.inspection.edits.files import dump_edits, parse_edits
from transom.inspection.edits.schemas import Scale
from transom.inspection.edits.scope import EditNeverFiredError
from transom.layers import attention
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.models.build import build_model

HEAD: dict[str, Any] = {"kind": "ablate-heads", "blocks": [0], "heads": [1]}
STREAM = "decoder.blocks.0.resid_post"


@pytest.mark.parametrize("order", [1, -1])
def test_the_inner_scope_applies_after_the_outer_one(order: int) -> None:
    model, batch = build("gpt")
    edits = [{"kind": "scale", "name": STREAM, "factor": 3.0}, {"kind": "set", "name": STREAM, "value": 2.0, "positions": [1]}][::order]
    recorder = ActivationRecorder([STREAM])
    with torch.no_grad():
        with transom.edits(model, edits[:1]) as outer:
            with transom.edits(model, edits[1:]) as inner:
                nested = model(batch, recorder)
            after = model(batch)
        with transom.edits(model, edits):
            assert torch.equal(model(batch), nested)
        with transom.edits(model, edits[:1]):
            assert torch.equal(model(batch), after)
    assert torch.equal(recorder.activations[STREAM][:, 1], torch.full((2, 12), 2.0 if order == 1 else 6.0, dtype=torch.float64))
    assert outer.fired == (2,) and inner.fired == (1,)


def test_changes_of_the_same_weights_act_together_and_before_those_of_their_output() -> None:
    model, batch = build("gpt")

    def weights(products: Tensor, d_head: int, mask: Tensor) -> Tensor:
        hidden = mask.clone()
        hidden[3, 0] = False
        return softmax_of_visible(products, 1, hidden)

    def first_is_zero(z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z[:, :1]), z[:, 1:]], 1)

    expected = by_hand("gpt", model, batch, Change("decoder", 0, weights=weights, z=first_is_zero))
    with (
        torch.no_grad(),
        transom.edits(model, [{**HEAD, "heads": [0]}, {"kind": "unscaled-scores", "blocks": [0]}]),
        transom.edits(model, [{"kind": "knock-out-key", "blocks": [0], "queries": [3], "keys": [0]}]),
    ):
        assert torch.allclose(model(batch), expected, rtol=0, atol=1e-10)


def test_a_scope_ends_with_an_exception_which_is_kept() -> None:
    model, batch = build("gpt")
    plain = model(batch)
    with pytest.raises(KeyError), transom.edits(model, [HEAD]):
        raise KeyError("inside")
    assert model.edits is None and torch.equal(model(batch), plain)
    with transom.edits(model, [HEAD]) as outer:
        edited = model(batch)
        with pytest.raises(EditNeverFiredError), transom.edits(model, [{**HEAD, "positions": [9]}]):
            model(batch)
        assert torch.equal(model(batch), edited)
    assert outer.fired == (3,)


def test_a_scope_counts_anew_each_time_and_is_not_put_inside_itself() -> None:
    model, batch = build("gpt")
    scope = transom.edits(model, [HEAD])
    with scope:
        model(batch)
    with pytest.raises(EditNeverFiredError), scope:
        pass
    with scope, pytest.raises(ConfigError, match="edits: expected a scope that is not in force, found one inside itself"):
        model(batch)
        with scope:
            pass
    assert scope.fired == (1,) and model.edits is None


def experts() -> tuple[Network, Any]:
    """Build a model whose block 0 sends all tokens to expert 1, by its balancing bias."""
    expert = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 2, "top_k": 1, "norm_topk_prob": False}
    model, batch = model_of(FAMILIES[3], feed_forward=expert | {"load_balancing": "bias"})
    model.get_buffer("decoder.blocks.0.ff.bias")[1] = 1e3
    return model, batch


def routed() -> tuple[Network, Any]:
    """Build a model whose block 1 selects no token."""
    model, batch = model_of(FAMILIES[3], depth={"kind": "mod", "capacity": 0.5, "every": 1})
    torch.nn.init.constant_(model.get_parameter("decoder.blocks.1.depth.map.bias"), -1e3)
    return model, batch


@pytest.mark.parametrize(
    ("make", "edit", "expected"),
    [
        (lambda: build("gpt"), {**HEAD, "positions": [5, 7]}, "no row has positions 5 7, since the longest has 5 positions"),
        (lambda: build("gpt"), {"kind": "knock-out-key", "keys": [8]}, "no row has keys 8, since the longest has 5 positions"),
        (
            lambda: build("gpt"),
            {"kind": "knock-out-key", "queries": [6], "keys": [0]},
            "no row has queries 6 and keys 0, since the longest has 5 positions",
        ),
        (routed, {"kind": "ablate-heads", "blocks": [1]}, "whose block processes only the tokens that its router selects"),
    ],
)
def test_an_edit_that_never_fired_says_why(make: Callable[[], Any], edit: dict[str, Any], expected: str) -> None:
    model, batch = make()
    with pytest.raises(EditNeverFiredError, match=expected) as found, transom.edits(model, [edit]) as scope:
        model(batch)
    assert scope.fired == (0,) and f"edit 0 ({edit['kind']}" in str(found.value)


def test_an_expert_without_tokens_is_named() -> None:
    model, batch = experts()
    recorder = ActivationRecorder(["*.experts.*.hidden"])
    model(batch, recorder)
    address = "decoder.blocks.0.ff.experts.{}.hidden".format
    assert len(recorder.activations[address(1)]) == 8 and not len(recorder.activations[address(0)])
    idle = transom.edits(model, [{"kind": "ablate-neurons", "blocks": [0], "expert": 0}])
    expected = r"no token was sent to the expert of decoder\.blocks\.0\.ff\.experts\.0\.hidden"
    with pytest.raises(EditNeverFiredError, match=expected), idle:
        model(batch)
    again, edit = ActivationRecorder([address(1)]), {"kind": "ablate-neurons", "blocks": [0], "expert": 1, "value": "mean"}
    with torch.no_grad(), transom.edits(model, [edit]) as scope:
        model(batch, again)
    mean = recorder.activations[address(1)].mean(0)
    assert scope.fired == (1,) and torch.allclose(again.activations[address(1)], mean.expand(len(again.activations[address(1)]), -1))


def test_no_pass_at_all_is_an_error() -> None:
    model, _ = build("gpt")
    expected = r"no pass reached decoder\.blocks\.0\.attn\.z; run the model inside the with block"
    with pytest.raises(EditNeverFiredError, match=expected), transom.edits(model, [HEAD]):
        pass


@pytest.mark.parametrize("name", MODELS)
def test_only_the_edited_block_leaves_its_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build(name)
    stack = {"stack": STACKS[name]} if name == "translator" else {}
    transom.edits(model, [{**HEAD, **stack}])  # lists the sites of the model by a pass on fake tensors
    kernel, explicit = list[Tensor](), list[int]()
    real, scores = attention.scaled_dot_product_attention, AttentionInputs.scores
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda q, *rest: kernel.append(q) or real(q, *rest))
    monkeypatch.setattr(AttentionInputs, "scores", lambda inputs: explicit.append(inputs.q.shape[1]) or scores(inputs))
    with torch.no_grad():
        model(batch)
        n_layers = len(kernel)
        with transom.edits(model, [{"kind": "unscaled-scores", "blocks": [1], "heads": [2], **stack}]):
            model(batch)
        assert len(kernel) == 2 * n_layers and explicit == [1], "one head of one block is computed on its own"
        with transom.edits(model, [{**HEAD, **stack}]):
            model(batch)
    assert len(kernel) == 3 * n_layers and explicit == [1]


@pytest.mark.parametrize("placement", every(2, ["post", "pre"]))
def test_without_a_scope_the_graph_is_as_before(placement: str) -> None:
    model = build_model(observed_config(placement)).eval()
    before = nodes(model)
    with pytest.raises(EditNeverFiredError), transom.edits(model, [{**HEAD, "stack": "encoder"}]):
        pass
    assert nodes(model) == before and "edits" not in [name for name, _ in model.named_buffers()]
    with transom.edits(model, [{"kind": "scale", "name": "encoder.blocks.0.resid_mid", "factor": 2.0}]):
        assert nodes(model) != before


def test_a_pass_asks_once_per_stack_for_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build("translator")
    reads = list[int]()
    monkeypatch.setattr(Network, "edits", property(lambda network: reads.append(1)), raising=True)
    with torch.no_grad():
        model(batch)
    assert len(reads) == 2


def test_a_scope_belongs_to_its_model_in_all_threads() -> None:
    (model, batch), (other, _) = build("gpt"), build("gpt")
    with torch.no_grad():
        plain = model(batch)
        with transom.edits(model, [HEAD]) as scope:
            edited, found = model(batch), list[Tensor]()

            def work() -> None:
                with torch.no_grad():
                    found.append(model(batch))

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert torch.equal(other(batch), plain) and not torch.equal(edited, plain)
    assert all(torch.equal(each, edited) for each in found) and scope.fired == (9,)


def generator() -> Generator:
    """Build a language model of letters with a tokenizer."""
    tokenizer = Tokenizer.train(["abcdefgh"], TokenizerConfig(kind="char"))
    model, _ = model_of(FAMILIES[3], vocab_size=tokenizer.vocab_size, max_seq_len=24, position="rotary")
    return Generator(model, tokenizer)


def test_generated_tokens_have_the_probabilities_of_a_whole_edited_pass() -> None:
    run = generator()
    edits = [{"kind": "knock-out-key", "keys": [1, 5]}, {"kind": "ablate-heads", "heads": [0], "positions": [2, 7]}, {**HEAD, "heads": [3]}]
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 9, "min_new_tokens": 8}
    ((plain,),) = run.continuations(["abc"], **options)
    with transom.edits(run, edits) as scope:
        ((found,),) = run.continuations(["abc"], **options)
        assert "".join(run.stream("abc", **options)) == found.text
        tokens = torch.tensor([[2, *run.encode("abc"), *run.encode(found.text)]])
        tokens[0, 0] = run.text_batch([])[0].decoder_input.tokens[0, 0]
        with torch.no_grad():
            p = run.model(tokens[:, :-1])[0].softmax(-1).gather(1, tokens[0, 1:, None])[-found.n_tokens :, 0]
    assert found.probabilities == pytest.approx(p.tolist(), abs=1e-9)
    assert found.probabilities != plain.probabilities and min(scope.fired) > found.n_tokens
    ((again,),) = run.continuations(["abc"], **options)
    assert again.probabilities == plain.probabilities


@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_are_scored_as_the_edited_model_scores_them(beam_size: int) -> None:
    run = translator()
    texts = ["abc de", "hag", "bb"]
    edits = [{"kind": "ablate-heads", "part": "cross", "heads": [0]}, {"kind": "knock-out-key", "stack": "encoder", "keys": [1]}]
    plain = run.n_best(texts, beam_size, beam_size=beam_size, max_length=8)
    with transom.edits(run, edits):
        found = run.n_best(texts, beam_size, beam_size=beam_size, max_length=8)
        pairs = [(text, each) for text, best in zip(texts, found, strict=True) for each in best if _is_reversible(run, each)]
        scores = run.score([text for text, _ in pairs], [each.text for _, each in pairs])
    assert len(pairs) > 1 and [each.log_p for _, each in pairs] == pytest.approx([each.log_p for each in scores], abs=1e-9)
    assert [best[0].log_p for best in found] != [best[0].log_p for best in plain]


def _is_reversible(run: Translator, found: Translation) -> bool:
    """Tell whether the text of a translation has its tokens: leading and double spaces are lost."""
    return run.tokenizers.target.symbols(run.tokenizers.target.encode(found.text)) == list(found.tokens)


def test_without_edits_whole_passes_and_cached_steps_agree() -> None:
    run = translator()
    nothing = [{"kind": "scale", "name": "resid_post", "factor": 1.0}]
    plain = run.n_best(["abc de", "hag"], 3, beam_size=3)
    with transom.edits(run, nothing):
        found = run.n_best(["abc de", "hag"], 3, beam_size=3)
    for one, other in zip(plain, found, strict=True):
        assert [each.text for each in one] == [each.text for each in other]
        assert [each.log_p for each in one] == pytest.approx([each.log_p for each in other], abs=1e-9)


def test_a_step_with_a_cache_is_refused() -> None:
    run = generator()
    with transom.edits(run, [HEAD]):
        with pytest.raises(ConfigError, match="edits: expected a pass over whole texts, found a decoding step with a cache"):
            run.generate(["abc"], early_exit_threshold=0.5)
        run.score(["abc"])


def test_fast_encoders_are_not_used_inside_a_scope() -> None:
    tokenizer = Tokenizer.train(["abcdefgh"], TokenizerConfig(kind="char"))
    model, _ = build("bert", vocab_size=tokenizer.vocab_size)
    fast, _ = build("bert", vocab_size=tokenizer.vocab_size)
    torch.nn.init.zeros_(fast.unembedding.weight)  # shows who answers
    run = Classifier(model, tokenizer, encoder_backend=fast)  # type: ignore[arg-type]
    by_fast = run.predict_proba(["abc"])
    with transom.edits(run, [HEAD]) as scope:
        found = run.predict_proba(["abc"])
        expected = model(run.text_batch(run.encode("abc"))[0]).softmax(-1)
    assert scope.fired == (2,) and torch.allclose(torch.from_numpy(found), expected) and (run.predict_proba(["abc"]) == by_fast).all()


def test_a_trace_of_an_edited_pass_has_the_edited_weights() -> None:
    model, batch = build("llama")
    with torch.no_grad(), transom.edits(model, [{"kind": "knock-out-key", "blocks": [0], "heads": [2], "keys": [1]}]):
        logits, trace = transom.trace(model, batch, ["attn.weights", "attn.z", "attn.v"], store="all")
        part = transom.trace(model, batch, ["attn.weights"], heads=[2], positions=[3])[1]["decoder.blocks.0.attn.weights"]
        assert torch.equal(logits, model(batch))
    weights = trace["decoder.blocks.0.attn.weights"]
    assert (weights[:, 2, 1:, 1] == 0).all() and (weights[:, 1, 2:, 1] > 0).all()
    v = trace["decoder.blocks.0.attn.v"].repeat_interleave(2, 1)
    assert torch.allclose(weights @ v, trace["decoder.blocks.0.attn.z"])
    assert torch.equal(part, weights[:, [2]][:, :, [3]])
    assert [each.address for each in trace.certify()] == ["decoder.blocks.1.attn"] and trace.edited == {"decoder.blocks.0.attn"}


RECURRENT: dict[str, Any] = {
    "kind": "recurrent-seq2seq",
    "d_model": 8,
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
    "source_vocab_size": 9,
    "target_vocab_size": 9,
    "max_seq_len": 16,
}


@pytest.mark.parametrize("kind", ["additive", "luong"])
def test_states_of_a_recurrent_network_are_edited_at_their_step(kind: str) -> None:
    model = transom.build(RECURRENT | {"attention": kind}).double().eval()
    batch = model.as_batch(torch.tensor([[3, 4, 5, 2]]), decoder_tokens=torch.tensor([[1, 5, 8]]))
    recorder, edited = ActivationRecorder(["decoder.cross.z"]), ActivationRecorder(["decoder.cross.z"])
    with torch.no_grad():
        plain = model(batch, recorder)
        with transom.edits(model, [{"kind": "scale", "name": "decoder.cross.z", "factor": 3.0, "positions": [1]}]) as scope:
            found = model(batch, edited)
        doubled = ActivationRecorder(["decoder.layers.0.h"])
        outer = transom.edits(model, [{"kind": "set", "name": "decoder.layers.0.h", "value": 0.5}])
        with outer, transom.edits(model, [{"kind": "scale", "name": "decoder.layers.0.h", "factor": 2.0}]):
            model(batch, doubled)
    assert (found != plain).any(-1).tolist() == [[False, True, True]]
    z, after = recorder.activations["decoder.cross.z"], edited.activations["decoder.cross.z"]
    assert torch.allclose(after[:, 0, 1], 3 * z[:, 0, 1]) and torch.equal(after[:, 0, 0], z[:, 0, 0]) and scope.fired[0] > 0
    (h,) = doubled.activations.values()
    assert torch.equal(h, torch.ones_like(h)), "each step is scaled once"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"kind": "ablate-heads", "blocks": [2]}, r"ablate-heads: blocks: expected indices from 0 to 1, found 2"),
        ({"kind": "ablate-heads", "heads": [6]}, r"heads: expected indices from 0 to 5 for decoder\.blocks\.0\.attn\.z, found 6"),
        ({"kind": "knock-out-key", "heads": [6], "keys": [0]}, "heads: expected indices from 0 to 5, found 6"),
        ({"kind": "ablate-heads", "part": "cross"}, "expected blocks with cross-attention, found none in the decoder"),
        ({"kind": "ablate-heads", "stack": "encoder"}, "stack: expected decoder, found 'encoder'"),
        ({"kind": "ablate-neurons", "neurons": [8]}, r"neurons: expected indices from 0 to 7 for decoder\.blocks\.0\.ff\.hidden, found 8"),
        ({"kind": "ablate-neurons", "expert": 0}, "expert: expected no expert, since decoder.blocks.0 has one feed-forward network"),
        ({"kind": "scale", "name": "resid_mit", "factor": 2.0}, "found 'resid_mit'; the nearest are 1.resid_mid"),
        ({"kind": "scale", "name": "attn.weights", "factor": 2.0}, r"found decoder\.blocks\.0\.attn\.weights, which is recomputed"),
        ({"kind": "scale", "name": "resid_mid", "factor": 2.0, "heads": [0]}, "heads: expected a tensor with heads, found decoder"),
        ({"kind": "set", "name": "resid_mid", "value": [1.0, 2.0]}, "value: expected a number, or 12 numbers for the last axis"),
        ({"kind": "no-residual", "sublayer": "block"}, "sublayer: expected attn, cross or ff, found 'block'"),
        ({"kind": "patch", "name": "resid_mid", "text": "hello"}, "expected the name of an input for a model without a tokenizer"),
        ({"kind": "patch", "name": "resid_mid", "text": "one", "positions": [4]}, r"positions: expected indices from 0 to 1 of the text"),
        (
            {"kind": "patch", "name": "resid_mid", "text": "one", "positions": [0], "from_positions": [2]},
            r"from_positions: expected indices from 0 to 1 of the text 'one', found 2",
        ),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_when_it_is_made(edit: dict[str, Any], expected: str) -> None:
    model, _ = build("gpt")
    with pytest.raises(ConfigError, match=expected):
        transom.edits(model, [edit], inputs={"one": torch.tensor([[1, 2]])})


def test_edits_of_what_is_no_model_or_not_exact_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a run or a model of transom, found Linear"):
        transom.edits(torch.nn.Linear(2, 2), [HEAD])
    linear, _ = build("gpt", position="learned", attention={"approximation": "linear"})
    with pytest.raises(ConfigError, match="expected scaled dot-product attention, found ApproximateAttention"):
        transom.edits(linear, [{"kind": "unscaled-scores"}])
    recurrent = transom.build(RECURRENT | {"attention": "additive"})
    with pytest.raises(ConfigError, match="expected a model with Transformer blocks, found one without"):
        transom.edits(recurrent, [HEAD])
    both, _ = build("translator")
    with pytest.raises(ConfigError, match="stack: expected encoder or decoder for a model with both, found none"):
        transom.edits(both, [HEAD])
    model, _ = build("gpt")
    one = model.as_batch(torch.tensor([[3, 4]]))
    scope = transom.edits(model, [{**HEAD, "value": "resample"}])
    with pytest.raises(ConfigError, match="resample: expected reference texts or a batch of at least two rows"), scope:
        model(one)


@pytest.mark.parametrize("placement", ["sandwich", "parallel", "parallel-separate"])
def test_residuals_of_other_placements(placement: str) -> None:
    model, batch = build("gpt", norm_placement=placement)
    recorder = ActivationRecorder(["*"])
    sublayer = "ff" if placement == "sandwich" else "block"
    with torch.no_grad(), transom.edits(model, [{"kind": "no-residual", "blocks": [0], "sublayer": sublayer}]):
        model(batch, recorder)
    seen, block = recorder.activations, model.get_submodule("decoder.blocks.0")
    path = "decoder.blocks.0"
    ff = block.ff.down(seen[f"{path}.ff.hidden"])  # type: ignore[operator, union-attr]
    if placement != "sandwich":
        ff = ff + block.attn.o(seen[f"{path}.attn.z"].transpose(1, 2).flatten(2))  # type: ignore[operator, union-attr]
        with pytest.raises(ConfigError, match="expected block, since the block is parallel, found 'ff'"):
            transom.edits(model, [{"kind": "no-residual", "sublayer": "ff"}])
    else:
        ff = block.ff_residual.norm_out(ff)  # type: ignore[operator, union-attr]
    assert torch.allclose(seen[f"{path}.resid_post"], ff, rtol=0, atol=1e-10)


def edits_of_every_kind() -> st.SearchStrategy[dict[str, Any]]:
    """Draw the fields of an edit of any kind."""
    indices = st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)
    finite = st.floats(-1e6, 1e6)
    shared: dict[str, Any] = {"stack": st.sampled_from([None, "encoder", "decoder"]), "blocks": indices}
    heads, site = shared | {"part": st.sampled_from(["attn", "cross"]), "heads": indices}, {"name": st.just("resid_mid"), "heads": indices}
    values = {
        "value": st.sampled_from(["mean", "resample"]),
        "texts": st.lists(st.text(max_size=9), max_size=2),
        "seed": st.integers(0, 99),
    }
    kinds: dict[str, dict[str, Any]] = {
        "ablate-heads": heads | values | {"positions": indices},
        "ablate-neurons": shared | values | {"neurons": indices, "expert": st.none() | st.integers(0, 3)},
        "patch": site | {"text": st.text(), "run": st.none() | st.just("runs/a")},
        "knock-out-key": heads | {"keys": st.lists(st.integers(0, 9), min_size=1, unique=True), "queries": indices},
        "scale": site | {"factor": finite, "positions": indices},
        "set": site | {"value": finite | st.lists(finite, min_size=1, max_size=3), "neurons": indices},
        "unscaled-scores": heads,
        "zero-after-softmax": heads,
        "no-residual": shared | {"sublayer": st.sampled_from(["attn", "cross", "ff", "block"])},
    }
    return st.one_of([st.fixed_dictionaries({"kind": st.just(kind), **fields}) for kind, fields in kinds.items()])


@settings(max_examples=30)
@given(st.lists(edits_of_every_kind(), min_size=1, max_size=4))
def test_a_file_gives_back_its_edits(fields: list[dict[str, Any]]) -> None:
    edits = parse_edits({"version": 1, "edits": fields})
    for edit, given_fields in zip(edits, fields, strict=True):
        found = edit.model_dump(mode="json")
        assert {name: found[name] for name in given_fields} == given_fields
    assert parse_edits(json.loads(json_bytes(dump_edits(edits)))) == edits


def test_edits_are_objects_dictionaries_or_a_file(tmp_path: Path) -> None:
    model, batch = build("gpt")
    edit = Scale(name="resid_mid", factor=2.0)
    file = tmp_path / "edits.json"
    file.write_text('{"version": 1, "edits": [{"kind": "scale", "name": "resid_mid", "factor": 2}]}')
    found = []
    for given_edits in ([edit], [{"kind": "scale", "name": "resid_mid", "factor": 2.0}], file, str(file)):
        with torch.no_grad(), transom.edits(model, given_edits) as scope:
            found.append(model(batch))
        assert scope.edits == (edit,)
    assert all(torch.equal(each, found[0]) for each in found)
