"""Hand calculations re-evaluate line by line, in all families and formats, and are those of the model."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import transom
from tests.inspection.evaluate_explanation import READERS, evaluate_tree, holds, last_place
from tests.inspection.test_names import image_batch
from tests.models.combinations import ENCODERS, FAMILIES, SET_ENCODERS, SET_TEXTS, SET_WRITERS, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.models.test_vision import SET_NETWORKS
from tests.models.test_vision import described as described_network
from tests.tiers import every, tiers
from transom.config.adapter import LoraConfig
from transom.config.vision import ImageClassifierConfig
from transom.errors import ConfigError
from transom.inspection.certify import CertificationError
from transom.inspection.derive_attention import AttentionInputs
from transom.inspection.explain.builder import ExplanationError
from transom.inspection.explain.explanation import Explanation
from transom.inspection.explain.expressions import Expression, Number, Sum, exact, exp, sqrt, tanh
from transom.inspection.explain.notation import TEXT, Latex, Typeset
from transom.inspection.explain.steps import MIN_DIGITS, Calculation, Note, Section, Values
from transom.layers.lora import LoraLinear
from transom.models.apply_lora import apply_lora
from transom.models.base import Network


def model_and_batch(fields: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Network, Any]:
    """Build a model of a family, and a batch for it."""
    if "vocab_size" in fields or "source_vocab_size" in fields:
        config = described(fields)
        return built(config).to(dtype), batch_for(config)
    image: ImageClassifierConfig = described_network(fields)
    batch = image_batch(image)
    return built(image).to(dtype), replace(batch, pixels=batch.pixels.to(dtype))


def choices(model: Network, draw: random.Random) -> dict[str, Any]:
    """Draw block, head, element, token, key and candidate."""
    config: Any = model.config
    stacks = [getattr(model, name) for name in ("encoder", "decoder") if hasattr(model, name)]
    n_blocks = min((len(getattr(stack, "blocks", getattr(stack, "layers", ()))) for stack in stacks), default=1)
    heads = min(getattr(config, name, 99) for name in ("n_heads", "decoder_n_heads")) if hasattr(config, "n_heads") else 1
    return {
        "block": draw.randrange(n_blocks),
        "head": draw.randrange(heads),
        "dim": draw.randrange(config.d_model),
        "query": draw.choice([None, 0, 1]) if stacks else None,
        "top": draw.choice([1, 5]),
        "key": draw.choice([None, 0, 2]) if stacks else None,
        "candidate": draw.choice([None, 0]),
        "every": draw.random() < 0.7,
    }


def calculations(explanation: Explanation) -> list[Calculation]:
    return [step for section in explanation.sections for step in section.steps if isinstance(step, Calculation)]


def check(explanation: Explanation) -> None:
    """Evaluate every line of every format, and the tree of every step in the JSON."""
    n = len(calculations(explanation))
    assert n >= 3
    for name, reader in READERS.items():
        lines = reader(getattr(explanation, name)())
        assert len(lines) == n, name
        wrong = [line for line in lines if not holds(line)]
        assert not wrong, (name, wrong)
    steps = [step for section in json.loads(explanation.json())["sections"] for step in section["steps"]]
    trees = [step for step in steps if step["kind"] == "calculation"]
    assert len(trees) == n
    for step in trees:
        value = evaluate_tree(step["expression"])
        assert value == float(step["value"]) or math.isclose(value, step["value"], rel_tol=1e-9, abs_tol=1e-12), step["label"]


SETS = [*SET_TEXTS, *SET_NETWORKS]


@pytest.mark.parametrize("number", every(12, range(len(SETS)), long=4), ids=lambda number: f"{number} {SETS[number]['kind']}")
def test_every_printed_line_gives_its_result(number: int) -> None:
    model, batch = model_and_batch(SETS[number])
    check(transom.explain(model, batch, **choices(model, random.Random(number))))


@pytest.mark.parametrize("number", tiers(range(len(SET_WRITERS + SET_ENCODERS + SET_NETWORKS)), long=range(0, 99, 6)))
def test_every_combination_is_written_out(number: int) -> None:
    fields, draw = [*SET_WRITERS, *SET_ENCODERS, *SET_NETWORKS][number], random.Random(number)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model, batch = model_and_batch(fields, dtype)
        check(transom.explain(model, batch, **choices(model, draw), temperatures=[draw.choice([0.01, 0.7, 30.0])]))


DECODER = SIZES | {"n_kv_heads": 3, "d_ff": 8} | FAMILIES[3]


def decoder(**fields: Any) -> tuple[Network, Any]:
    return model_and_batch(DECODER | fields)


def changed(text: str, place: int) -> str:
    """Replace the digit at a place by the next one."""
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def test_a_changed_digit_of_a_result_is_noticed() -> None:
    model, batch = decoder(norm="layernorm", position="rotary")
    explanation = transom.explain(model, batch, head=2, query=3)
    for name, reader in READERS.items():
        lines = reader(getattr(explanation, name)())
        assert len(lines) > 50
        for line in lines:
            mantissa = line.result.partition("e")[0]
            for place in (place for place, character in enumerate(mantissa) if character.isdigit()):
                assert not holds(line._replace(result=changed(line.result, place))), (name, line)


def test_a_changed_digit_of_an_operand_is_noticed() -> None:
    """The first digits of the operands of sums matter; the last ones need not."""
    model, batch = decoder(norm="layernorm")
    lines = READERS["text"](transom.explain(model, batch, query=3).text())
    sums = [line for line in lines if line.label.startswith("q_3 . k_")]
    assert len(sums) == 4
    for line in sums:
        place = next(place for place, character in enumerate(line.expression) if character in "123456789")
        assert not holds(line._replace(expression=changed(line.expression, place)))


@pytest.mark.parametrize(("width", "heads"), [(4, 2), (300, 3)])
def test_wide_vectors_are_shortened_with_exact_partial_sums(width: int, heads: int) -> None:
    fields = {"d_model": width, "n_heads": heads, "n_kv_heads": heads, "d_head": width // heads, "d_ff": width + 3}
    explanation = transom.explain(*decoder(**fields, norm="layernorm", attention={"qkv_bias": True}), dim=width - 1)
    check(explanation)
    step = next(step for step in calculations(explanation) if step.label.startswith("q_3["))
    expression, _ = step.write(TEXT)
    products = step.data()["expression"]["operands"][0]
    assert len(products["operands"]) == width
    if width == 4:
        assert "more" not in expression and expression.count("*") == 4
        return
    assert expression.count("*") == 4 and "... (296 more: " in expression
    rest = math.fsum(a["operands"][0] * a["operands"][1] for a in products["operands"][products["n_shown"] :])
    assert products["rest"] == pytest.approx(rest, rel=1e-12)
    shown = float(expression.partition("296 more: ")[2].partition(")")[0])
    assert shown == pytest.approx(rest, abs=0.5 * 10 ** -last_place(step.data()["result"]))


def test_probabilities_have_three_temperatures() -> None:
    model, batch = decoder()
    explanation = transom.explain(model, batch, query=2, top=3)
    assert [section.title for section in explanation.sections][-3:] == [f"Probabilities at temperature {t}" for t in ("0.5", "1", "2")]
    logits = model(batch)[0, 2]
    best = logits.topk(3).indices.tolist()
    for section, tau in zip(explanation.sections[-3:], (0.5, 1.0, 2.0), strict=True):
        found = {step.label: step.value for step in section.steps if isinstance(step, Calculation)}
        for candidate in best:
            assert found[f"p({candidate})"] == pytest.approx((logits / tau).softmax(-1)[candidate].item(), rel=1e-5)


def test_the_sections_are_in_the_order_of_the_data() -> None:
    model, batch = model_and_batch(SIZES | FAMILIES[0] | {"norm_placement": "pre", "norm": "layernorm", "d_ff": 8})
    titles = [section.title for section in transom.explain(model, batch, temperatures=[1.0]).sections]
    attention = ["queries, keys and values", "scores of query {}", "output"]

    def block(side: str, query: int, cross: bool) -> Iterator[str]:
        yield f"{side}, tokens and embeddings"
        for name in ("self-attention", *["cross-attention"] * cross):
            yield f"{side}, norm before {name}"
            yield from (f"{side}, {name}, head 0: {part.format(query)}" for part in attention)
            yield f"{side}, residual connection around {name}"
        yield f"{side}, norm before the feed-forward network"
        yield f"{side}, feed-forward network of token {query}"
        yield f"{side}, residual connection around the feed-forward network"
        yield f"{side}, final norm of token {query}"

    expected = [*block("Encoder", 4, False), *block("Decoder", 3, True)]
    assert titles == [*expected, "Decoder, logits", "Decoder, probabilities at temperature 1"]
    alone = [section.title for section in transom.explain(model, batch, stack="encoder").sections]
    assert alone == expected[: len(alone)] and alone[-1] == "Encoder, final norm of token 4"


LAYERS = [f"decoder.blocks.1.attn.{name}" for name in "qkvo"] + ["decoder.blocks.1.ff.up", "decoder.blocks.1.ff.down", "unembedding"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_computes_something_else_is_noticed(layer: str) -> None:
    model, batch = decoder(feed_forward="relu", norm="layernorm")
    model.get_submodule(layer).register_forward_hook(lambda module, arguments, output: output * 1.001 + 0.001)
    with pytest.raises(ExplanationError, match=r"by hand, .* in the model, .* times the bound"):
        transom.explain(model, batch, block=1)


def test_weights_that_do_not_give_the_head_output_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = decoder()
    real = AttentionInputs.of

    def of(*arguments: Any) -> AttentionInputs:
        inputs = real(*arguments)
        return inputs._replace(args=inputs.args._replace(mask=None))

    monkeypatch.setattr(AttentionInputs, "of", of)
    with pytest.raises((ExplanationError, CertificationError)):
        transom.explain(model, batch, query=0)


def test_the_summary_and_the_certificate_say_what_was_compared() -> None:
    explanation = transom.explain(*decoder())
    n = sum(step.traced is not None for step in calculations(explanation))
    assert f" {n} steps were compared with the numbers that the model computed" in explanation.summary
    checks = [step.text for section in explanation.sections for step in section.steps if isinstance(step, Note) and step.kind == "check"]
    assert len(checks) == 1 and checks[0].startswith("checked: weights x V equals the kernel's head output; the largest difference is 0.")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"block": 2}, "block: expected a number from 0 to 1 of the decoder, found 2"),
        ({"head": 6}, "head: expected a number from 0 to 5, found 6"),
        ({"dim": 12}, "dim: expected a number from 0 to 11, found 12"),
        ({"query": 4}, "query: expected the position of a token, from 0 to 3 in the decoder, found 4"),
        ({"stack": "encoder"}, "stack: expected decoder, found 'encoder'"),
        ({"temperatures": [0.0]}, "temperatures: expected numbers from 1e-6 to 1e6, found 0"),
        ({"temperatures": [1.0, 1e300]}, "temperatures: expected numbers from 1e-6 to 1e6, found 1, 1e.300"),
        ({"temperatures": []}, "temperatures: expected numbers from 1e-6 to 1e6, found none"),
        ({"top": 0}, "top: expected a number of candidates from 1, found 0"),
    ],
)
def test_choices_out_of_range_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        transom.explain(*decoder(), **options)


def test_a_position_must_exist_on_both_sides() -> None:
    model, batch = model_and_batch(SIZES | FAMILIES[0] | {"d_ff": 8})
    with pytest.raises(
        ConfigError, match="from 0 to 4 in the encoder and from 0 to 3 in the decoder, found 4; choose one side, the encoder or the decoder"
    ):
        transom.explain(model, batch, query=4)
    assert transom.explain(model, batch, query=4, stack="encoder").settings["queries"] == {"encoder": 4}


def test_padding_is_no_query() -> None:
    model, _ = decoder()
    tokens, mask = torch.tensor([[5, 6, 7, 0]]), torch.tensor([[1, 1, 1, 0]])
    batch = model.make_batch(tokens, mask)
    assert transom.explain(model, batch).settings["queries"] == {"decoder": 2}
    with pytest.raises(ConfigError, match="from 0 to 2 in the decoder, found 3"):
        transom.explain(model, batch, query=3)


def test_of_many_keys_those_with_the_largest_weights_are_worked_out() -> None:
    model, _ = decoder(max_seq_len=64)
    tokens = torch.randint(4, 9, (1, 40), generator=torch.Generator().manual_seed(1))
    explanation = transom.explain(model, tokens, query=30)
    check(explanation)
    keys = [step.label for step in calculations(explanation) if step.label.startswith("A_30,")]
    _, found = transom.trace(model, tokens, ["attn.weights"], blocks=[0], heads=[0], positions=[30])
    best = sorted(found["attn.weights"][0, 0, 0].topk(12).indices.tolist())
    assert [int(label.split(",")[1].split()[0]) for label in keys] == best
    total = next(step for step in calculations(explanation) if step.label == "sum")
    assert "... (27 more: " in total.write(TEXT)[0]  # 31 visible keys


def test_large_scores_are_shifted_before_the_exponentials() -> None:
    model, batch = decoder()
    with torch.no_grad():
        model.get_submodule("decoder.blocks.0.attn.q").weight.mul_(1e3)
        model.unembedding.weight.mul_(1e4)
    explanation = transom.explain(model, batch)
    check(explanation)
    assert "which does not change the result" in explanation.text()


HOSTILE = r"""a = b `c` ``d`` \step{x}{1}{2} $#% & <script>alert(1)</script> </p> * _ | ~ ^"""


def test_hostile_names_of_tokens_change_no_line() -> None:
    step = Calculation(f"A ({HOSTILE})", "A = B / C", Number(1.5) / exact(3), 0.5)
    section = Section("Title", [step, Note(HOSTILE + "\x1b[2J\n    1 = 1 = 1"), Values(HOSTILE, HOSTILE, (1.0, 2.5), (HOSTILE, HOSTILE))])
    explanation = Explanation("Title", {}, (section,), "Summary.", (HOSTILE,))
    for name, reader in READERS.items():
        (line,) = reader(getattr(explanation, name)())
        assert holds(line) and (line.expression.replace(" ", ""), line.result) in (("1.5/3", "0.5000"), ("((1.5)/(3))", "0.5000")), name
    page = explanation.html()
    assert "<script" not in page and "\x1b" not in page + explanation.text() + explanation.markdown() + explanation.latex()
    assert "<script" not in explanation._repr_html_()


def test_colors_are_added_to_the_text_and_change_nothing_else() -> None:
    explanation = transom.explain(*decoder())
    colored = explanation.text(color=True)
    plain = colored
    for code in ("1", "2", "32", "36", "0"):
        plain = plain.replace(f"\x1b[{code}m", "")
    assert colored != plain == explanation.text() == str(explanation)


def test_the_json_has_a_version_and_all_choices() -> None:
    data = json.loads(transom.explain(*decoder(), block=1, head=4, dim=3, query=2).json())
    assert list(data) == ["format_version", "title", "settings", "notes", "summary", "sections"]
    assert data["format_version"] == 1
    settings = {"block": 1, "head": 4, "queries": {"decoder": 2}, "dim": 3, "temperatures": [0.5, 1.0, 2.0], "top": 5}
    assert data["settings"] == settings | {"tokens": {"decoder": ["1", "5", "8", "4"]}}
    assert {step["kind"] for section in data["sections"] for step in section["steps"]} == {"calculation", "values", "note", "check"}
    fields = {"kind", "label", "formula", "expression", "value", "traced", "digits", "result"}
    assert all(step.keys() == fields for section in data["sections"] for step in section["steps"] if step["kind"] == "calculation")


NUMBERS = st.floats(-1e3, 1e3, allow_nan=False, width=32)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20)
SPECIFICATIONS: st.SearchStrategy[Any] = st.recursive(
    NUMBERS | PAIRS,
    lambda inner: st.tuples(st.sampled_from(["-", "*", "/"]), inner, inner) | st.tuples(st.sampled_from(["tanh", "exp"]), inner),
)
"""Expressions as plain data."""


def expression_of(specification: Any) -> Expression:
    """Build an expression whose value is finite."""
    match specification:
        case float():
            return Number(specification)
        case list():
            return Sum([Number(a) * Number(b) for a, b in specification])
        case ("-", a, b):
            return expression_of(a) - expression_of(b)
        case ("*", a, b):
            return expression_of(a) * (expression_of(b) - exact(2))
        case ("/", a, b):
            return expression_of(a) / (sqrt(expression_of(b) * expression_of(b)) + exact(1e-5))
        case ("tanh", a):
            return tanh(expression_of(a))
        case (_, a):
            return exp(tanh(expression_of(a)) * exact(3))
    raise AssertionError(specification)


@settings(max_examples=40)
@given(SPECIFICATIONS)
def test_any_expression_re_evaluates_from_the_fewest_digits(specification: Any) -> None:
    expression = expression_of(specification)
    step = Calculation("x", "", expression, None)
    explanation = Explanation("Title", {}, (Section("Title", [step]),), "")
    for name, reader in READERS.items():
        (line,) = reader(getattr(explanation, name)())
        assert holds(line), (name, line)
    if step.digits.operands > MIN_DIGITS:
        shorter, places = step.digits.operands - 1, step.digits.places
        unit = 10.0**-places
        distance = abs(expression.value(shorter) - float(step.write(TEXT)[1])) / unit
        assert distance > 0.499, "with one digit less the result is another one, or between two"


def test_notations_write_the_same_expression() -> None:
    expression = (Number(-0.5) * Number(-2e-7) - Number(3.0) * (Number(1.0) + Number(-2.0))) / sqrt(exact(64))
    assert expression.write(TEXT, 4) == "(-0.5 * (-2e-7) - 3 * (1 + (-2))) / sqrt(64)"
    assert expression.write(Typeset(), 4) == "(−0.5 × (−2e−7) − 3 × (1 + (−2))) / √(64)"
    latex = r"\frac{-0.5 \cdot \left(-2 \times 10^{-7}\right) - 3 \cdot \left(1 + \left(-2\right)\right)}{\sqrt{64}}"
    assert expression.write(Latex(), 4) == latex
    assert expression.value() == pytest.approx(0.3750000125, rel=1e-12)


def test_several_labels_have_their_own_probabilities() -> None:
    fields = {"kind": "text-classifier", "n_layers": 1, "vocab_size": 9, "classes": ["a", "b", "c"], "d_ff": 8, "multi_label": True}
    model, batch = model_and_batch(SIZES | fields)
    explanation = transom.explain(model, batch, temperatures=[2.0])
    check(explanation)
    found = {step.label: step.value for step in calculations(explanation)[-3:]}
    expected = (model(batch)[0] / 2).sigmoid()
    assert found == {f"p({name})": pytest.approx(expected[c].item(), rel=1e-5) for c, name in enumerate("abc")}


def test_a_low_rank_update_is_part_of_the_weights() -> None:
    model, batch = decoder()
    apply_lora(model, LoraConfig(rank=2, target_modules=("attn.q", "attn.o")))
    for module in model.modules():
        if isinstance(module, LoraLinear):
            torch.nn.init.normal_(module.lora_b)
    check(transom.explain(model, batch))


def test_the_scores_of_a_plugin_are_not_written_out() -> None:
    model, batch = decoder()
    attention: Any = model.get_submodule("decoder.blocks.0.attn")
    attention.score = lambda q, k: (q @ k.transpose(-2, -1)).square()
    explanation = transom.explain(model, batch)
    check(explanation)
    text = explanation.text()
    assert text.count("the score function of a plugin has no formula that is known here") == 1 and "q_3 . k_" not in text
    assert "weights: A = e^S / sum" in text and "exp(S_3,0) = exp(" in text


def test_families_of_encoders_have_their_own_heads() -> None:
    titles = {}
    for fields in ENCODERS:
        model, batch = model_and_batch(SIZES | fields | {"d_ff": 8, "norm_placement": "pre", "norm": "layernorm"})
        titles[fields["kind"], fields.get("pooling")] = [section.title for section in transom.explain(model, batch).sections]
    assert "Transform of token 4" in titles["encoder", None]
    for kind, pooling in (("text-classifier", "cls"), ("text-classifier", "mean"), ("text-embedder", None)):
        assert "Pooling" in titles[kind, pooling]
    assert "Pooling" not in titles["token-tagger", None]
