"""The recomputed values against formulas in NumPy, from the given matrices alone, and against the forward pass of the whole model."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from transom.inspection.activations import Activations
from transom.inspection.trace import trace
from transom.lab.examples import load_examples
from transom.lab.recompute_counts import GPT3, SHAPES
from transom.lab.recompute_translation import build_translator, translation_batch
from transom.lab.worked_examples import Result, check_all
from transom.planning.parameters import count_parameters

Array = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return check_all()


def given(name: str) -> Array:
    """Return a given or printed value of article 002."""
    return load_examples()[f"002-{name}"].value.numpy()


def softmax(z: Array) -> Array:
    weights = np.exp(z - z.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)  # type: ignore[no-any-return]


def position(i: int, d: int) -> Array:
    """Compute the sinusoids one by one."""
    return np.array([(math.cos if j % 2 else math.sin)(i / 10000 ** ((j - j % 2) / d)) for j in range(d)])


def attend(part: str, queries: Array, keys: Array) -> dict[str, Array]:
    """Compute attention of two heads, and all values on the way."""
    found: dict[str, Array] = {}
    for h in (1, 2):
        q, k, v = (x @ given(f"{part}-w{name}{h}") for name, x in (("q", queries), ("k", keys), ("v", keys)))
        scores = q @ k.T / math.sqrt(3)
        weights = softmax(scores)
        head = {"q": q, "k": k, "v": v, "dots": q @ k.T, "scores": scores, "weights": weights, "z": weights @ v}
        found |= {f"{part}-{name}{h}": value for name, value in head.items()}
    concat = np.concatenate([found[f"{part}-z1"], found[f"{part}-z2"]], -1)
    return found | {f"{part}-concat": concat, f"{part}-mha": concat @ given(f"{part}-wo")}


def feed_forward(part: str, x: Array, weights: str) -> dict[str, Array]:
    pre = x @ given(f"{weights}-w1") + given(f"{weights}-b1")
    hidden = np.maximum(pre, 0)
    return {f"{part}-pre": pre, f"{part}-hidden": hidden, f"{part}-out": hidden @ given(f"{weights}-w2") + given(f"{weights}-b2")}


def forward_pass() -> dict[str, Array]:
    """Compute the encoder, the decoder and the probabilities of article 002."""
    e = np.stack([given("hello") + position(0, 4), given("world") + position(1, 4)])
    x0 = given("sos") + position(0, 4)
    v = {"e": e, "x0": x0, "pe-0": position(0, 4), "pe-1": position(1, 4), "dec-pe": position(0, 4), "sum-hello": e[0], "sum-world": e[1]}
    v |= attend("enc", e, e)
    v |= feed_forward("raw", v["enc-mha"], "enc")
    v["enc-1-sum"] = e + v["enc-mha"]
    v["enc-1-out"] = layer_norm(v["enc-1-sum"])
    v |= feed_forward("enc", v["enc-1-out"], "enc")
    v["enc-2-sum"] = v["enc-1-out"] + v["enc-out"]
    v["enc-2-out"] = layer_norm(v["enc-2-sum"])
    v |= attend("dec", x0[None], x0[None])
    v["dec-1-sum"] = x0[None] + v["dec-mha"]
    v["dec-1-out"] = layer_norm(v["dec-1-sum"])
    v |= attend("cross", v["dec-1-out"], v["enc-2-out"])
    v["dec-2-sum"] = v["dec-1-out"] + v["cross-mha"]
    v["dec-2-out"] = layer_norm(v["dec-2-sum"])
    v |= feed_forward("dec", v["dec-2-out"], "dec")
    v["dec-3-sum"] = v["dec-2-out"] + v["dec-out"]
    v["dec-3-out"] = v["hidden"] = layer_norm(v["dec-3-sum"])
    for n in (1, 2, 3):
        z = v[f"dec-{n}-sum"]
        v |= {f"dec-{n}-mean": z.mean(), f"dec-{n}-variance": z.var(), f"dec-{n}-std": z.std()}  # type: ignore[dict-item]
    v |= {"dec-3-total": v["dec-3-sum"].sum(), "dec-3-squares": ((v["dec-3-sum"] - v["dec-3-mean"]) ** 2).sum()}
    v["logits"] = v["hidden"] @ given("vocab-w") + given("vocab-b")
    v["probs"] = softmax(v["logits"])
    return v | {"logit-0": v["logits"][0, 0], "percent": 100 * v["probs"].max(), "argmax": v["probs"].argmax()}


def test_every_value_of_the_translation_equals_the_formulas(results: dict[str, Result]) -> None:
    compared = set()
    for name, value in forward_pass().items():
        if f"002-{name}" in results:
            right = results[f"002-{name}"].right.numpy()
            np.testing.assert_allclose(right, np.asarray(value).reshape(right.shape), rtol=1e-9, atol=1e-12, err_msg=name)
            compared.add(f"002-{name}")
    steps = {
        name
        for name, each in results.items()
        if each.example.section.partition("/")[0] in ("encoder", "decoder", "generation") and each.verdict != "given"
    }
    terms = {name for name in steps if "-q1-" in name}
    shapes = {name for name in steps if name.endswith(("shapes", "-size", "sqrt3"))}
    assert steps - compared == terms | shapes


def test_the_steps_are_the_forward_pass_of_the_model(results: dict[str, Result]) -> None:
    """The chain of steps gives what the model computes as a whole, read by ``transom trace``."""
    model = build_translator(lambda name: load_examples()[f"002-{name}"].value)
    logits, found = trace(model, translation_batch(model), names=["resid_mid", "resid_cross", "resid_post", "weights", "probs"])
    compared = {
        "enc-1-out": found["encoder.blocks.0.resid_mid"],
        "enc-2-out": found["encoder.blocks.0.resid_post"],
        "dec-1-out": found["decoder.blocks.0.resid_mid"],
        "dec-2-out": found["decoder.blocks.0.resid_cross"],
        "dec-3-out": found["decoder.blocks.0.resid_post"],
        "enc-weights1": found["encoder.blocks.0.attn.weights"][:, 0],
        "enc-weights2": found["encoder.blocks.0.attn.weights"][:, 1],
        "cross-weights1": found["decoder.blocks.0.cross.weights"][:, 0],
        "cross-weights2": found["decoder.blocks.0.cross.weights"][:, 1],
        "logits": logits,
        "probs": found["probs"],
    }
    for name, value in compared.items():
        right = results[f"002-{name}"].right
        torch.testing.assert_close(value.reshape(right.shape), right, rtol=1e-12, atol=1e-12, msg=name)


def test_elements_are_sums_of_their_products(results: dict[str, Result]) -> None:
    for name, result in results.items():
        if name.endswith("-terms"):
            torch.testing.assert_close(result.right.sum(), results[name.removesuffix("-terms")].right)
    x, w = forward_pass()["e"], given("enc-wq1")
    np.testing.assert_allclose(results["002-enc-q1-12-terms"].right, x[1] * w[:, 2], rtol=1e-12)
    np.testing.assert_allclose(results["002-dec-q1-0-terms"].right, forward_pass()["x0"] * given("dec-wq1")[:, 0], rtol=1e-12)


def test_two_heads_and_positions(results: dict[str, Result]) -> None:
    concat = np.concatenate([given("head-1"), given("head-2")], 1)
    np.testing.assert_array_equal(results["002-two-output"].right, concat @ given("two-wo"))
    for i in range(5):
        np.testing.assert_allclose(results[f"000-p{i}"].right, position(25 * i, 8)[:4], rtol=1e-12, atol=1e-15)
    for i in (0, 1):
        np.testing.assert_allclose(results[f"004-pe-{i}"].right, position(i, 4), rtol=1e-12)
    assert results["004-period"].right == pytest.approx(2 * math.pi)
    assert results["002-cos"].right == pytest.approx(math.cos(0.01))


def test_attention_by_hand_and_softmax(results: dict[str, Result]) -> None:
    e = math.exp(1 / math.sqrt(2))
    assert results["004-exp"].right == pytest.approx(e)
    np.testing.assert_allclose(results["004-weights"].right, [e / (e + 1), 1 / (e + 1)], rtol=1e-12)
    scores = np.array([-1.0, 92.0, 85.0, 20.0])
    np.testing.assert_allclose(results["003-weights"].right, softmax(scores), rtol=1e-9)
    assert softmax(scores / math.sqrt(128))[3] < 0.0012, "the other reading"
    temperatures = [(92 - 85) / math.log(0.6 / 0.35), (92 - 20) / math.log(0.6 / 0.0499), (85 - 20) / math.log(0.35 / 0.0499)]
    assert [round(each) for each in temperatures] == [13, 29, 33]


def test_parameter_counts_are_the_formulas(results: dict[str, Result]) -> None:
    d, n, vocab = 12288, 96, 50257
    block = 4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d
    assert count_parameters(GPT3).total == n * block + vocab * d + 2048 * d + 2 * d
    assert results["004-gpt3-ffn"].right == pytest.approx(96 * 8 * d**2 / 1e9)
    assert results["003-embedding-count"].right == pytest.approx(50000 * d / 1e6)
    w = 18432
    palm = 118 * (2 * w * 48 * 256 + 2 * w * 256 + 3 * w * 4 * w)
    assert count_parameters(SHAPES["palm"]).total == pytest.approx(palm + 256000 * w, rel=1e-4), "and norms"
    w = 8192
    lamda = 64 * (4 * w * 128 * 128 + 3 * w * 65536)
    assert results["002-lamda-parameters"].right == pytest.approx(lamda / 1e9, rel=1e-4)
    llama = 80 * (4 * w * w + 3 * w * 22016) + 2 * 32000 * w
    assert count_parameters(SHAPES["llama"]).total == pytest.approx(llama, rel=1e-4)


@pytest.mark.parametrize(("name", "d", "layers", "vocab", "length"), [("jurassic", 13824, 76, 256000, 2048), ("gpt", 768, 12, 40478, 512)])
def test_counts_of_gpt_like_models(name: str, d: int, layers: int, vocab: int, length: int) -> None:
    assert count_parameters(SHAPES[name]).total == pytest.approx(layers * (12 * d * d + 13 * d) + (vocab + length) * d, rel=1e-5)


def test_what_the_explanations_say_of_attention_and_norm() -> None:
    z = given("dec-1-sum")
    statistics = [float(each) for each in (z.var(), z.var(ddof=1), abs(z - z.mean()).mean(), z.std())]
    assert statistics == pytest.approx([0.3254, 0.4339, 0.5203, 0.5704], abs=6e-5)
    np.testing.assert_allclose((z - 1.0767) / 0.5419, [-1.094, -0.826, 0.365, 1.556], atol=6e-4)
    x0 = given("x0")
    for name, weights in (("dec-q1-0", "dec-wq1"), ("dec-k1", "dec-wk1")):
        error = abs(given(name).flatten()[0] - x0 @ given(weights)[:, 0])
        assert 0.0005 < error < 0.0005 * (1 + x0.sum()), "explained only by further digits of the weights"
    memory = given("enc-2-out")
    for name in ("v1", "k2", "v2"):
        error = abs(given(f"cross-{name}") - memory @ given(f"cross-w{name}"))
        assert error.max() > 0.0005 and (error < 0.0005 * (1 + abs(memory).sum(1, keepdims=True))).all(), "likewise"
    for row, name in enumerate("qkv"):
        np.testing.assert_array_equal(given(f"dec-{name}2"), given("dec-wq2")[row])
    once, twice = given("cross-dots2"), given("cross-scores2")
    np.testing.assert_allclose(given("cross-q2") @ given("cross-k2").T / math.sqrt(3), once, atol=4e-4)
    assert abs(softmax(once) - given("cross-weights2")).max() < 0.0001 < abs(softmax(twice) - given("cross-weights2")).max()


def least_squares_error(weight: Array, values: Array) -> float:
    """Return the largest error of the vector x whose product with a matrix is nearest to the values."""
    x, *_ = np.linalg.lstsq(weight.T, values, rcond=None)
    return float(abs(x @ weight - values).max())


def test_what_the_explanations_say_of_feed_forward_network_and_logits() -> None:
    pre, bias = given("dec-pre"), given("dec-b1")
    errors = [least_squares_error(given("dec-w1"), pre - bias), least_squares_error(given("dec-w1"), pre)]
    assert errors == pytest.approx([1.3, 0.9], abs=0.05)
    for hidden in (given("dec-pre"), given("dec-hidden")):
        for b_2 in (np.zeros(4), given("dec-b2")):
            assert abs(hidden @ given("dec-w2") + b_2 - given("dec-out")).max() > 0.1
    flipped = given("logits") * np.where(np.arange(10) == 3, -1, 1)
    for logits in (given("logits"), flipped):
        assert min(least_squares_error(given("vocab-w"), logits - b) for b in (np.zeros(10), given("vocab-b"))) > 0.9
    assert abs(softmax(flipped) - given("probs")).max() < 0.0006 < abs(softmax(given("logits")) - given("probs")).max()
    right = given("hidden") @ given("vocab-w") + given("vocab-b")
    np.testing.assert_allclose(right[:4], [-0.257, 1.020, -0.325, -0.156], atol=6e-4)
    assert softmax(right)[1] == pytest.approx(0.202, abs=6e-4)


def test_a_quantity_of_the_model_follows_from_printed_values() -> None:
    """Probabilities of the printed logits come from the same table of quantities as those of a trained model."""
    model = build_translator(lambda name: load_examples()[f"002-{name}"].value)
    found = Activations(model, translation_batch(model), {"logits": torch.from_numpy(given("logits"))})
    np.testing.assert_allclose(found["probs"], softmax(given("logits")), rtol=1e-12)
