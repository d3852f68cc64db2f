"""Hand calculations of edited passes: every line holds, each edit is a visible line, and the logits are those of the edited model."""

from typing import Any

import pytest
import torch

import transom
from tests.inspection.evaluate_explanation import READERS
from tests.inspection.test_explain import calculations, check, decoder, model_and_batch
from tests.models.combinations import ENCODERS, FAMILIES, SIZES, VOCAB
from tests.models.test_vision import PLAIN, STEMS
from tests.tiers import tiers

ORDINARY = SIZES | {"d_ff": 8, "norm": "layernorm", "norm_placement": "pre"}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": ORDINARY | FAMILIES[3] | {"n_kv_heads": 3},
    "post": ORDINARY | FAMILIES[4] | {"norm_placement": "post", "position": "rotary"},
    "parallel": ORDINARY | FAMILIES[4] | {"norm_placement": "parallel"},
    "parallel-separate": ORDINARY | FAMILIES[4] | {"norm_placement": "parallel-separate"},
    "sandwich": ORDINARY | FAMILIES[4] | {"norm_placement": "sandwich", "attention": {"sinks": True, "softcap": 1.5}, "position": "alibi"},
    "translator": ORDINARY | FAMILIES[0],
    "classifier": ORDINARY | ENCODERS[2] | {"position": "learned"},
    "filler": ORDINARY | ENCODERS[0],
    "experts": ORDINARY | FAMILIES[3] | {"feed_forward": {"kind": "moe", "n_experts": 3, "top_k": 2, "expert": "swiglu"}},
    "routed": ORDINARY | FAMILIES[3] | {"depth": {"kind": "mod", "every": 1}},
    "linear": ORDINARY | FAMILIES[3] | {"attention": {"approximation": "linear"}},
    "picture": PLAIN | {"pooling": "cls", "stem": STEMS[1], "patch_size": 2},
    "convolutional": {"kind": "convolutional", "channels": 1, "stem": STEMS[1]},
    "recurrent": {"kind": "recurrent-decoder", "vocab_size": VOCAB, "max_seq_len": 16, "d_model": 12, "n_layers": 2, "cell": "lstm"},
    **{
        attention: {
            "kind": "recurrent-seq2seq",
            "source_vocab_size": VOCAB,
            "target_vocab_size": VOCAB,
            "max_seq_len": 16,
            "d_model": 12,
            "cell": "gru",
            "bidirectional": True,
            "attention": attention
            if attention == "additive"
            else {"kind": "luong", "score": "general", "input_feeding": attention == "fed"},
        }
        for attention in ("additive", "fed", "luong")
    },
}
"""Models whose sites differ."""

BLOCK: dict[str, Any] = {"blocks": [0]}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("decoder", {"kind": "ablate-heads", "heads": [2], **BLOCK}),
    ("decoder", {"kind": "ablate-heads", "heads": [2], "value": "mean", **BLOCK}),
    ("decoder", {"kind": "ablate-heads", "heads": [2], "value": "resample", **BLOCK}),
    ("decoder", {"kind": "ablate-heads", "heads": [2], "value": "mean", "texts": ["other"], **BLOCK}),
    ("decoder", {"kind": "ablate-neurons", "neurons": [0], **BLOCK}),
    ("decoder", {"kind": "ablate-neurons", "neurons": [3], **BLOCK}),
    ("decoder", {"kind": "ablate-neurons", "neurons": [0], "value": "mean", **BLOCK}),
    ("experts", {"kind": "ablate-neurons", "neurons": [0], "expert": 1, **BLOCK}),
    ("decoder", {"kind": "patch", "name": "decoder.blocks.0.resid_post", "text": "other"}),
    ("decoder", {"kind": "patch", "name": "decoder.blocks.0.attn.k", "text": "other", "positions": [1]}),
    *(
        ("decoder", {"kind": "scale", "name": f"decoder.blocks.0.{site}", "factor": 2.5})
        for site in ("attn.q", "attn.k", "attn.v", "attn.z")
    ),
    *(
        ("decoder", {"kind": "scale", "name": f"decoder.blocks.0.{site}", "factor": -0.5})
        for site in ("resid_pre", "resid_mid", "ff.hidden")
    ),
    ("decoder", {"kind": "scale", "name": "decoder.blocks.0.attn_residual.norm.x", "factor": 2.0}),
    ("decoder", {"kind": "scale", "name": "embedding.resid", "factor": 2.0}),
    ("decoder", {"kind": "scale", "name": "decoder.norm.x", "factor": 2.0}),
    ("decoder", {"kind": "set", "name": "decoder.blocks.0.resid_mid", "value": -1.5, "neurons": [0, 7]}),
    ("decoder", {"kind": "set", "name": "decoder.blocks.0.resid_mid", "value": [0.1 * i for i in range(12)]}),
    *(
        (name, {**edit, "stack": "decoder", **BLOCK} if name == "translator" else {**edit, **BLOCK})
        for name in ("decoder", "post", "sandwich", "translator")
        for edit in (
            {"kind": "knock-out-key", "heads": [2], "queries": [3], "keys": [0, 2]},
            {"kind": "unscaled-scores"},
            {"kind": "zero-after-softmax", "heads": [2]},
            {"kind": "no-residual", "sublayer": "attn"},
            {"kind": "no-residual", "sublayer": "ff"},
        )
    ),
    ("translator", {"kind": "no-residual", "sublayer": "cross", "stack": "decoder", **BLOCK}),
    ("translator", {"kind": "knock-out-key", "part": "cross", "keys": [1], "stack": "decoder", **BLOCK}),
    ("translator", {"kind": "ablate-heads", "part": "cross", "heads": [2], "stack": "decoder", **BLOCK}),
    ("parallel", {"kind": "no-residual", "sublayer": "block", **BLOCK}),
    ("parallel-separate", {"kind": "no-residual", "sublayer": "block", **BLOCK}),
    ("parallel", {"kind": "scale", "name": "decoder.blocks.0.resid_post", "factor": 2.0}),
    ("post", {"kind": "scale", "name": "decoder.blocks.0.resid_mid", "factor": 2.0}),
    ("post", {"kind": "scale", "name": "decoder.blocks.0.attn.q", "factor": 2.0}),
    ("classifier", {"kind": "scale", "name": "pooled", "factor": 2.0}),
    ("filler", {"kind": "scale", "name": "transform_norm.x", "factor": 2.0}),
    ("experts", {"kind": "scale", "name": "decoder.blocks.0.ff.router", "factor": 2.0}),
    ("routed", {"kind": "scale", "name": "decoder.blocks.0.depth.score", "factor": 2.0}),
    ("routed", {"kind": "scale", "name": "decoder.blocks.0.resid_pre", "factor": 2.0}),
    ("linear", {"kind": "ablate-heads", "heads": [2], **BLOCK}),
    ("linear", {"kind": "scale", "name": "decoder.blocks.0.attn.k", "factor": 2.0}),
    ("picture", {"kind": "ablate-heads", "heads": [2], **BLOCK}),
    ("picture", {"kind": "scale", "name": "embedding.resid", "factor": 2.0}),
    ("picture", {"kind": "scale", "name": "embedding.stem.stages.0", "factor": 2.0}),
    ("picture", {"kind": "scale", "name": "pooled", "factor": 2.0}),
    ("convolutional", {"kind": "scale", "name": "stem.stages.0", "factor": 2.0}),
    ("convolutional", {"kind": "set", "name": "pooled", "value": 1.0}),
    ("recurrent", {"kind": "scale", "name": "decoder.layers.0.h", "factor": 2.0}),
    *((name, {"kind": "scale", "name": "decoder.layers.0.h", "factor": 2.0}) for name in ("additive", "fed", "luong")),
    *((name, {"kind": "scale", "name": "encoder.layers.0.h", "factor": 2.0}) for name in ("additive", "fed", "luong")),
    *(
        (name, {"kind": "scale", "name": f"decoder.cross.{site}", "factor": 2.0})
        for name in ("additive", "fed", "luong")
        for site in "qkvz"
    ),
]


OF_EACH_KIND = {(name, edit["kind"]): number for number, (name, edit) in enumerate(CASES)}.values()
"""One case of each kind of edit of each model."""
OTHERS = [number for number in range(len(CASES)) if number % 3]


@pytest.mark.parametrize(
    "number",
    [*range(0, len(CASES), 3), *tiers(OTHERS, long=OF_EACH_KIND)],
    ids=lambda number: f"{CASES[number][0]}-{CASES[number][1]['kind']}",
)
def test_an_edit_is_a_line_and_every_line_holds(number: int) -> None:
    name, edit = CASES[number]
    model, batch = model_and_batch(MODELS[name])
    other = {"other": torch.tensor([[1, 6, 3, 7]])}
    heads = {} if name in ("convolutional", "recurrent", "additive", "fed", "luong") else {"head": 2}
    query = {} if name in ("classifier", "convolutional") or edit.get("name") == "pooled" else {"query": 3}
    if edit["kind"] == "zero-after-softmax":
        query = {"query": 2}  # the last token sees every key
    with transom.edits(model, [edit], inputs=other):
        explanation = transom.explain(model, batch, **heads, **query, temperatures=[1.0])
        with torch.no_grad():
            logits = model(batch)[0]
    check(explanation)
    assert explanation.sections[0].title == "Edits"
    for form in READERS:
        written = getattr(explanation, form)()
        assert written.count("edited: " + edit["kind"]) >= 2, form
    assert explanation.data()["settings"]["edits"][0]["kind"] == edit["kind"]
    found = [step for step in calculations(explanation) if step.label.startswith("z(") and step.traced is not None]
    values = logits if logits.ndim == 1 else logits[query.get("query", -1)]
    assert {step.traced for step in found} <= set(values.double().tolist()) and len(found) >= 3
    with torch.no_grad():
        assert not torch.equal(model(batch)[0], logits)


def test_nested_edits_of_one_tensor_are_lines_in_their_order() -> None:
    model, batch = decoder(norm="layernorm")
    site = "decoder.blocks.0.attn.z"
    first, second = {"kind": "scale", "name": site, "factor": 3.0}, {"kind": "set", "name": site, "value": 0.25}
    with transom.edits(model, [{"kind": "unscaled-scores", "blocks": [0]}, first]), transom.edits(model, [second]):
        explanation = transom.explain(model, batch)
    check(explanation)
    lines = [step for step in calculations(explanation) if step.label == "z_3[0] (edited)"]
    assert ["scale" in lines[0].formula, "set" in lines[1].formula] == [True, True]
    (weighted,) = [step for step in calculations(explanation) if step.label == "z_3[0]"]
    assert lines[0].value == pytest.approx(3.0 * weighted.value) and lines[1].value == 0.25
    assert "S = q . k / sqrt(d_k)" not in explanation.text()


def test_an_edit_elsewhere_is_listed_and_changes_no_line_here() -> None:
    model, batch = decoder(norm="layernorm")
    with transom.edits(model, [{"kind": "ablate-heads", "blocks": [1], "heads": [0]}]):
        explanation = transom.explain(model, batch, head=2)
    check(explanation)
    assert explanation.text().count("edited: ") == 1
    assert "sections" in explanation.data() and transom.explain(model, batch).data()["settings"].keys() == explanation.settings.keys() - {
        "edits"
    }
