"""The answers of the server equal independent computations, for four kinds of models."""

import base64
import json
import re
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import transom
from tests.serving.runs import INPUTS, picture, serve
from tests.serving.shown import Shown, part_of
from tests.tiers import every
from transom.cli.main import main
from transom.errors import ConfigError, DataError
from transom.inspection.activations import Activations
from transom.inspection.certify import Certificate, CertificationError, certify
from transom.inspection.edits.schemas import AblateHeads
from transom.inspection.lenses.logit_attribution import logit_attribution
from transom.inspection.lenses.logit_lens import logit_lens
from transom.serving.explorer import request_key
from transom.serving.server import PAGE

every_run = pytest.mark.parametrize("shown", every(4, ["language", "translator", "classifier", "pictures"]), indirect=True)


def ask(shown: Shown, kind: str, /, **fields: Any) -> dict[str, Any]:
    """Ask about the pass of a served run; the answer is JSON."""
    answer = shown.server.explorer.answer(kind, {"input": shown.input, **fields})
    return json.loads(json.dumps(answer, allow_nan=False))


def array(answer: dict[str, Any]) -> Tensor:
    """Return the tensor of an answer."""
    return torch.frombuffer(bytearray(base64.b64decode(answer["data"])), dtype=torch.float32).reshape(answer["shape"])


def flat(logits: Tensor) -> Tensor:
    """Return the logits of the row, (positions, symbols)."""
    return logits[0] if logits.ndim == 3 else logits


@every_run
def test_models_and_vocabulary(shown: Shown) -> None:
    answer = json.loads(json.dumps(shown.server.explorer.answer("models", {})))
    (model,) = answer["models"]
    config = shown.run.model.config
    assert answer["version"] == transom.__version__ and answer["comparable"] is False
    assert (model["d_model"], model["n_heads"], model["kind"]) == (config.d_model, config.n_heads, config.kind)
    assert model["n_parameters"] == sum(x.numel() for x in load_file(Path(model["folder"]) / "model.safetensors").values())
    assert {each["name"]: each["n_blocks"] for each in model["stacks"]} == {
        name: 2 for name in ("encoder", "decoder") if f"{name}.blocks.0.resid_pre" in shown.trace.quantities
    }
    assert 1 <= len(model["samples"]) <= 12
    for sample in model["samples"]:
        assert shown.server.explorer.answer("pass", {"input": sample["input"]})["tokens"], "a sample can be looked at"
    symbols = shown.server.explorer.answer("vocabulary", {})["symbols"]
    tokenizer = shown.run.tokenizers.target if hasattr(shown.run, "tokenizers") else getattr(shown.run, "tokenizer", None)
    classes = getattr(config, "classes", None)
    assert symbols == (list(classes) if classes else tokenizer.symbols(list(range(flat(shown.logits).shape[1]))))


@every_run
def test_a_pass_lists_tokens_layers_and_quantities(shown: Shown) -> None:
    answer, config = ask(shown, "pass"), shown.run.model.config
    certificates = ask(shown, "certificates")
    assert set(certificates) == {each["address"] for each in answer["layers"]}
    for stack, tokens in answer["tokens"].items():
        side = "source" if stack == "encoder" else "decoder_input"
        if answer["grid"] is None:
            ids = getattr(shown.batch, side).tokens[0].tolist()
            assert [each["id"] for each in tokens] == ids and [each["position"] for each in tokens] == list(range(len(ids)))
            assert [each["text"] for each in tokens] == shown.trace.tokens["source" if stack == "encoder" else "target"]
        else:
            assert len(tokens) == config.n_positions == answer["grid"] ** 2 + answer["n_class_tokens"]
    for layer in answer["layers"]:
        weights = shown.trace[f"{layer['address']}.weights"]
        assert (layer["n_heads"], layer["shape"]) == (weights.shape[1], list(weights.shape[2:]))
        assert layer["exact"] and certificates[layer["address"]]["ratio"] == certify(shown.trace.activations, layer["address"]).ratio <= 1
        assert layer["keys"] == ("encoder" if layer["part"] == "cross" else layer["queries"])
    assert len(answer["layers"]) == sum(name.endswith(".weights") for name in shown.trace.quantities)
    quantities = ask(shown, "quantities")["quantities"]
    assert [each["address"] for each in quantities] == list(shown.trace.quantities) and answer["idle"] == []
    for each in quantities:
        x = part_of(shown.trace, each["address"])
        assert len(each["axes"]) == x.ndim == len(each["shape"])
        assert all(size in (None, n) for size, n in zip(each["shape"], x.shape, strict=True)), each
        assert each["formula"]
    assert answer["outputs"]["positions"] == list(range(len(flat(shown.logits)))) and answer["whole"] and answer["fired"] == []


@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_maps_that_are_not_certified_are_not_shown(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the layer that fails; the pass, its other layers and its streams are shown."""
    layer = "decoder.blocks.1.attn"

    def fail(a: Activations, path: str) -> Certificate:
        return certify(a, path)._replace(**({"ratio": 3.0} if path == layer else {}))

    monkeypatch.setattr("transom.serving.passes.certify", fail)
    body = {"input": {"text": "the dog and the ship"}}
    explorer, index = shown.server.explorer, {"n_heads": 0, "query": 3, "key": 1}
    assert explorer.answer("pass", body)["layers"]
    asked = [("tensor", {"name": f"{layer}.weights"}), ("calculation", {"name": f"{layer}.scores", "index": index})]
    asked += [("certificates", {}), ("head", {"attention": layer, "head": 0, "query": 3, "position": 3})]
    for kind, fields in asked:
        with pytest.raises(CertificationError, match=rf"{layer}: .* 3 times the bound of rounding"):
            explorer.answer(kind, body | fields)
    for name in ("decoder.blocks.0.attn.weights", "decoder.blocks.1.resid_post", "logits"):
        assert array(explorer.answer("tensor", body | {"name": name})).numel()


@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_the_map_of_an_edited_layer_has_no_certificate(shown: Shown) -> None:
    edit = head_off("decoder.blocks.0.attn", 1)
    assert list(ask(shown, "certificates", edits=[edit])) == ["decoder.blocks.1.attn"]


@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_maps_before_an_edit_are_certified_once(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it again, since their inputs are others."""
    seen = list[str]()
    monkeypatch.setattr("transom.serving.passes.certify", lambda a, path: seen.append(path) or certify(a, path))
    first, second = "decoder.blocks.0.attn", "decoder.blocks.1.attn"
    body = {"input": {"text": "a cat and a dog"}}
    scale = {"kind": "scale", "name": "decoder.blocks.0.attn.z", "factor": 0.5}
    edited = [[], [scale | {"name": "decoder.blocks.1.resid_post"}], [scale | {"name": "decoder.blocks.0.resid_post"}], [scale]]
    found = [shown.server.explorer.answer("certificates", body | {"edits": edits}) for edits in edited]
    assert seen == [first, second, second, first, second, second] and found[0] == found[1]
    assert [list(each) for each in found] == [[first, second]] * 3 + [[second]]


@every_run
def test_tensors_of_an_edited_pass_are_those_of_a_whole_one(shown: Shown) -> None:
    """Bit by bit: the blocks before the edit are those of the pass without it."""
    for kept in (False, True):
        if kept:
            ask(shown, "pass")
        edits = [head_off(shown.layer, 1 + kept)]
        with transom.edits(shown.run, edits):
            expected = transom.trace(shown.run, shown.batch, ["*"], store="all")[1]
        for name in expected.quantities:
            assert torch.equal(array(ask(shown, "tensor", name=name, edits=edits)), part_of(expected, name).float()), name


@every_run
def test_every_tensor_is_that_of_the_trace(shown: Shown) -> None:
    """Whole, and at a fixed index of its first axis."""
    for name in shown.trace.quantities:
        x = part_of(shown.trace, name).float()
        answer = ask(shown, "tensor", name=name)
        assert torch.equal(array(answer), x), name
        finite = x[x.isfinite()]
        assert (answer["min"], answer["max"], answer["finite"]) == (finite.min(), finite.max(), len(finite) == x.numel())
        if x.ndim:
            index = {answer["axes"][0]: x.shape[0] - 1}
            part = ask(shown, "tensor", name=name, index=index)
            assert torch.equal(array(part), x[-1]) and part["axes"] == answer["axes"][1:]


def head_off(layer: str, head: int) -> dict[str, Any]:
    """Return the edit that switches a head off."""
    stack, _, block, part = layer.split(".")
    return {"kind": "ablate-heads", "stack": stack, "part": part, "blocks": [int(block)], "heads": [head]}


@every_run
def test_logits_with_and_without_a_head(shown: Shown) -> None:
    """Switched off by hand: its columns of W_O are zero."""
    edit = head_off(shown.layer, 1)
    run = transom.load(shown.server.explorer.models[0].folder, "fp32")  # the trace is that of unchanged weights
    projection = run.model.get_submodule(shown.layer).o
    width = projection.weight.shape[1] // 4
    with torch.no_grad():
        projection.weight[:, width : 2 * width] = 0
        expected = flat(transom.trace(run, shown.batch, ["logits"])[0])
    for position in {0, len(expected) - 1}:
        assert torch.equal(array(ask(shown, "logits", position=position)), flat(shown.logits)[position])
        found = array(ask(shown, "logits", position=position, edits=[edit]))
        torch.testing.assert_close(found, expected[position], rtol=1e-5, atol=1e-6)
        assert not torch.equal(found, flat(shown.logits)[position])


@every_run
def test_what_a_head_does(shown: Shown) -> None:
    position, query = len(flat(shown.logits)) - 1, 2
    answer = ask(shown, "head", attention=shown.layer, head=1, query=query, position=position)
    weights = part_of(shown.trace, f"{shown.layer}.weights", {"n_heads": 1, "query": query}).double()
    order = weights.argsort(descending=True)
    assert [each["weight"] for each in answer["keys"]] == pytest.approx(weights[order[:12]].tolist())
    assert all(weights[each["position"]].item() == pytest.approx(each["weight"]) for each in answer["keys"])
    seen = weights[weights > 0]
    assert answer["entropy"] == pytest.approx(float(-(seen * seen.log()).sum()), rel=1e-6)
    before, after = (
        array(ask(shown, "logits", position=position, edits=edits)).double().softmax(-1) for edits in ([], [head_off(shown.layer, 1)])
    )
    symbol = int(before.argmax())
    assert (answer["symbol"], answer["p"]) == (symbol, pytest.approx(before[symbol].item(), rel=1e-5))
    assert answer["p_without"] == pytest.approx(after[symbol].item(), rel=1e-5)
    change = before - after
    for kind, sign in (("promoted", 1), ("suppressed", -1)):
        found = [(each["p"] - each["p_without"]) * sign for each in answer[kind]]
        expected = sorted((sign * change)[sign * change > 0].tolist(), reverse=True)[:5]
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-7)
        assert all(
            change[each["symbol"]].item() * sign == pytest.approx(value, abs=1e-7) for each, value in zip(answer[kind], found, strict=True)
        )


@every_run
def test_what_a_head_adds_to_a_logit_while_others_are_off(shown: Shown) -> None:
    position, edits = len(flat(shown.logits)) - 1, [head_off(shown.layer, 0)]
    answers = [ask(shown, "head", attention=shown.layer, head=head, query=2, position=position, symbol=1, edits=edits) for head in (0, 1)]
    with transom.edits(shown.run, edits):
        found = logit_attribution(shown.run, shown.batch, 1, position=position).contributions
    expected = [each.value for each in found if each.part == shown.layer and each.head in (0, 1)]
    assert [each["contribution"] for each in answers] == (pytest.approx(expected, rel=1e-4, abs=1e-6) if expected else [None, None])
    assert answers[0]["p"] == answers[0]["p_without"] and answers[1]["p"] != answers[1]["p_without"]


@every_run
def test_the_lens_reads_the_edited_pass(shown: Shown) -> None:
    position = len(flat(shown.logits)) - 1
    for edits in ([], [head_off(shown.layer, 0)]):
        answer = ask(shown, "lens", position=position, edits=edits)
        with transom.edits(shown.run, edits) if edits else nullcontext():
            expected = logit_lens(shown.run, shown.batch, positions=[position], top=5)
        assert [each["name"] for each in answer["streams"]] == expected.streams and answer["answer"] == int(expected.answers)
        for name, numbers in (("answer_p", expected.answer_probs), ("kl", expected.kl)):
            assert [each[name] for each in answer["streams"]] == pytest.approx(numbers.flatten().tolist(), rel=1e-5, abs=1e-6)
        symbols = [[each["symbol"] for each in stream["top"]] for stream in answer["streams"]]
        assert [each[0] for each in symbols] == expected.top_symbols[:, 0, 0, 0].tolist()


@every_run
def test_the_sweep_switches_off_each_head_alone(shown: Shown) -> None:
    position = len(flat(shown.logits)) - 1
    answer = ask(shown, "sweep", position=position)
    log_p = array(ask(shown, "logits", position=position)).double().log_softmax(-1)
    symbol = int(log_p.argmax())
    assert (answer["symbol"], answer["log_p"]) == (symbol, pytest.approx(log_p[symbol].item(), rel=1e-6))
    layers = [name.removesuffix(".weights") for name in shown.trace.quantities if name.endswith(".weights")]
    assert {(f"{each['stack']}.blocks.{each['block']}.{each['part']}", each["head"]) for each in answer["heads"]} == {
        (layer, head) for layer in layers for head in range(4)
    }
    for each in answer["heads"][::5]:
        edit = head_off(f"{each['stack']}.blocks.{each['block']}.{each['part']}", each["head"])
        without = array(ask(shown, "logits", position=position, edits=[edit])).double().log_softmax(-1)[symbol]
        assert each["difference"] == pytest.approx((without - log_p[symbol]).item(), abs=1e-5)
    assert AblateHeads.model_validate(edit)


@every_run
def test_tiles_of_every_level_are_sums(shown: Shown) -> None:
    weights = part_of(shown.trace, f"{shown.layer}.weights", {"n_heads": 1})
    for level in (0, 1, 3):
        answer = ask(shown, "tile", attention=shown.layer, head=1, level=level, row=0, column=0)
        stride = 2**level
        rows = weights[::stride]
        sums = torch.stack([rows[:, start : start + stride].sum(1) for start in range(0, weights.shape[1], stride)], 1)
        torch.testing.assert_close(array(answer), sums, rtol=1e-6, atol=1e-7)
        assert answer["queries"] == list(range(0, weights.shape[0], stride)) and answer["stride"] == stride


EDITS = {
    "a head that is off": {"kind": "ablate-heads", "blocks": [0], "heads": [0]},
    "heads of the layer itself that are off": {"kind": "ablate-heads", "blocks": [1], "heads": [0, 1]},
    "keys that are hidden": {"kind": "knock-out-key", "blocks": [1], "keys": [0], "heads": [1]},
    "scores that are not scaled": {"kind": "unscaled-scores", "blocks": [0, 1]},
    "a stream that is scaled": {"kind": "scale", "name": "resid_post", "factor": 0.5, "positions": [1]},
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("why", every(4, EDITS))
@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_tiles_show_the_map_with_the_edits_in_force(shown: Shown, why: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sites of the pass do not fit into memory, unless the edit changes the weights of that very map."""
    layer, edits = "decoder.blocks.1.attn", [EDITS[why]]
    text = INPUTS["language"] + ("" if whole else "a")
    if not whole:
        monkeypatch.setattr("transom.serving.passes.MAX_BYTES", 0)
    body = {"input": {"text": text}, "attention": layer, "head": 1, "level": 0, "row": 0, "column": 0}
    explorer = shown.server.explorer
    if not whole and EDITS[why]["kind"] in ("knock-out-key", "unscaled-scores"):
        with pytest.raises(ConfigError, match=f"changes the weights of {layer} in a long text"):
            explorer.answer("tile", body | {"edits": edits})
        return
    with transom.edits(shown.run, edits):
        expected = transom.trace(shown.run, text, [f"{layer}.weights"])[1][f"{layer}.weights"][0, 1]
    plain, found = (array(explorer.answer("tile", body | {"edits": each})) for each in ([], edits))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found, plain) == (why == "heads of the layer itself that are off")
    assert not shown.server.explorer.models[0].network.edits


@every_run
def test_calculations_give_their_cell(shown: Shown) -> None:
    """The value is that of the trace, and the last step in focus prints it; lines of Python and of the command name the quantity."""
    index = {"n_heads": 1, "query": 2, "key": 1}
    name = f"{shown.layer}.weights"
    answer = ask(shown, "calculation", name=name, index=index)
    value = part_of(shown.trace, name, index).item()
    assert answer["value"] == value
    focus = [step for section in answer["sections"] if section["focus"] for step in section["steps"] if step.get("focus")]
    assert focus and float(focus[-1]["result"].replace("−", "-")) == pytest.approx(value, rel=1e-3)
    assert name in answer["python"] and answer["command"].startswith("transom explain ")


def test_exported_answers_are_the_answers(runs: dict[str, Path]) -> None:
    """Keyed by the name and canonical JSON of the request, beside every module and message of the page."""
    with serve(runs["language"]) as server:
        body = {"input": {"text": 'the "cat" <b>'}, "position": 0}
        html = server.explorer.answer("export", {"requests": [["logits", body]], "state": {"head": 1}})["html"]
        assert request_key("logits", body) == 'logits {"input":{"text":"the \\"cat\\" <b>"},"position":0}'
        for file in PAGE.iterdir():
            if file.name.endswith(".js"):
                assert base64.b64encode(file.read_bytes()).decode() in html
        kept = json.loads(html.partition('id="answers">')[2].partition("</script>")[0])
        assert kept == {request_key("logits", body): json.loads(json.dumps(server.explorer.answer("logits", body)))}


@pytest.mark.parametrize("shown", every(2, ["translator", "language", "classifier"]), indirect=True)
def test_copied_lines_and_the_copied_command_give_the_number(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    """The target of the translator is not its own translation."""
    off = {"kind": "ablate-heads", "stack": shown.layer.partition(".")[0], "blocks": [0], "heads": [0]}
    for edits in ([], [off]):
        cell = {"name": f"{shown.layer}.weights", "index": {"n_heads": 1, "query": 2, "key": 1}}
        answer = ask(shown, "calculation", **cell, edits=edits)
        capsys.readouterr()
        exec(answer["python"], {})
        (printed,) = re.findall(r"tensor\((\S+?)[,)]", capsys.readouterr().out)
        assert float(printed) == pytest.approx(answer["value"], rel=1e-3, abs=1e-4)
        if not edits:  # the command names a file of the edits
            assert main(shlex.split(answer["command"])[1:]) == 0
            (result,) = {step["result"] for section in answer["sections"] for step in section["steps"] if step.get("focus")}
            assert re.search(rf"A_2,1 .*= {re.escape(result)}$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("shown", ["classifier"], indirect=True)
def test_words_that_training_never_saw_are_told(shown: Shown) -> None:
    explorer = shown.server.explorer
    notes = explorer.answer("pass", {"input": {"text": "the xylophone"}})["notes"]
    assert any("never seen in training: xylophone" in note for note in notes)
    german = explorer.answer("pass", {"input": {"text": "the xylophone"}, "language": "de"})["notes"]
    assert any("kamen im Training nie vor: xylophone" in note for note in german)


@pytest.mark.parametrize("shown", every(2, ["translator", "language"]), indirect=True)
def test_a_patched_stream_gives_the_logits_of_the_other_text(shown: Shown) -> None:
    """The stream after the last block of a language model, or of a translator's encoder, is all that its text contributes."""
    text = shown.input["text"]
    other = text[::-1]
    stack = "encoder" if "target" in shown.input else "decoder"
    name = f"{stack}.blocks.1.resid_post"
    n = len(ask(shown, "pass")["tokens"][stack])
    edits = [{"kind": "patch", "name": name, "text": other}]
    position = ask(shown, "pass")["outputs"]["positions"][-1]
    patched = array(ask(shown, "logits", position=position, edits=edits))
    expected = shown.server.explorer.answer("logits", {"input": shown.input | {"text": other}, "position": position})
    assert len(shown.server.explorer.answer("pass", {"input": shown.input | {"text": other}})["tokens"][stack]) == n
    assert torch.allclose(patched, array(expected), atol=1e-5)
    assert not torch.allclose(patched, array(ask(shown, "logits", position=position)), atol=1e-3)
    one = array(ask(shown, "logits", position=position, edits=[edits[0] | {"positions": [0]}]))
    with transom.edits(shown.run, [edits[0] | {"positions": [0]}]):
        by_hand = flat(shown.run.model(shown.batch))[position]
    assert torch.allclose(one, by_hand, atol=1e-5)


@pytest.mark.parametrize("shown", every(2, ["translator", "language"]), indirect=True)
def test_a_patch_from_another_position_of_a_second_text(shown: Shown) -> None:
    """The page lists the tokens of the second text as the patch reads them."""
    text = shown.input["text"]
    other = {"text": text.upper()[::-1] if "target" not in shown.input else "f d b"}
    stack = "encoder" if "target" in shown.input else "decoder"
    name = f"{stack}.blocks.0.resid_post"
    listed = shown.server.explorer.answer("tokens", {"input": other})
    assert listed["tokens"] == shown.server.explorer.answer("pass", {"input": other})["tokens"] and listed["image"] is None
    last = listed["tokens"][stack][-1]["position"]
    edits = [{"kind": "patch", "name": name, "text": other["text"], "positions": [1], "from_positions": [last]}]
    stream = array(ask(shown, "tensor", name=name, edits=edits))
    theirs = transom.trace(shown.run, other["text"], [name])[1][name][0]
    own = shown.trace[name][0]
    torch.testing.assert_close(stream[1], theirs[last], rtol=1e-5, atol=1e-6)
    assert torch.equal(stream[[0, 2]], own[[0, 2]]) and not torch.allclose(stream[1], own[1], atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("shown", ["pictures"], indirect=True)
def test_a_patch_from_a_second_picture(shown: Shown, tmp_path: Path) -> None:
    """All positions of the last stream give the other picture's logits; one position of one stream is that of the other picture's pass."""
    explorer, other = shown.server.explorer, picture(tmp_path / "other.png", seed=2)
    identifier = explorer.answer("upload", {"name": "other.png", "data": base64.b64encode(other.read_bytes()).decode()})["file"]
    edit = {"kind": "patch", "name": "encoder.blocks.1.resid_post", "text": identifier}
    of_other = array(explorer.answer("logits", {"input": {"file": identifier}, "position": 0}))
    assert torch.allclose(array(ask(shown, "logits", position=0, edits=[edit])), of_other, atol=1e-6)
    part = edit | {"name": "encoder.blocks.0.resid_post", "positions": [3], "from_positions": [5]}
    stream = array(ask(shown, "tensor", name=part["name"], edits=[part]))
    theirs = array(explorer.answer("tensor", {"input": {"file": identifier}, "name": part["name"]}))
    own = array(ask(shown, "tensor", name=part["name"]))
    assert torch.equal(stream[3], theirs[5]) and torch.equal(stream[:3], own[:3]) and not torch.equal(stream[3], own[3])
    listed = explorer.answer("tokens", {"input": {"file": identifier}})
    assert listed["grid"] == 4 and len(listed["tokens"]["encoder"]) == 17 and listed["image"].startswith("data:image/png;base64,")
    assert ask(shown, "pass", edits=[part])["copied"]["edits"] == [part | {"text": "other.png"}]


@pytest.mark.parametrize("text", ["/etc/hosts", "other.png", "0" * 32])
@pytest.mark.parametrize("edit", [{"kind": "patch", "name": "resid_post"}, {"kind": "ablate-heads", "value": "mean"}])
@pytest.mark.long
@pytest.mark.parametrize("shown", ["pictures"], indirect=True)
def test_edits_read_no_file_of_the_machine(shown: Shown, edit: dict[str, Any], text: str) -> None:
    source = {"text": text} if edit["kind"] == "patch" else {"texts": [text]}
    with pytest.raises(DataError, match="expected an uploaded file for this model, found none"):
        ask(shown, "pass", edits=[edit | source])


@pytest.mark.long
@pytest.mark.parametrize("shown", ["pictures"], indirect=True)
def test_copied_lines_of_a_sample_and_of_a_file(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines for a sample need no file; those for an uploaded file name it as it was uploaded."""
    explorer = shown.server.explorer
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "my cat.png", seed=3)
    upload = {"name": "my cat.png", "data": base64.b64encode((tmp_path / "my cat.png").read_bytes()).decode()}
    sample = explorer.answer("models", {})["models"][0]["samples"][1]["input"]
    for given in (sample, {"file": explorer.answer("upload", upload)["file"]}):
        for edits in ([], [{"kind": "patch", "name": "encoder.blocks.0.resid_post", "text": sample["file"], "positions": [2]}]):
            cell = {"name": f"{shown.layer}.weights", "index": {"n_heads": 1, "query": 2, "key": 1}}
            answer = explorer.answer("calculation", {"input": given, "edits": edits, **cell})
            capsys.readouterr()
            exec(answer["python"], {})
            (printed,) = re.findall(r"tensor\((\S+?)[,)]", capsys.readouterr().out)
            assert float(printed) == pytest.approx(answer["value"], abs=1e-4)
            if not edits:
                assert main(shlex.split(answer["command"])[1:]) == 0
                (result,) = {step["result"] for section in answer["sections"] for step in section["steps"] if step.get("focus")}
                assert re.search(rf"A_2,1 .*= {re.escape(result)}$", capsys.readouterr().out, re.MULTILINE)
                assert ("--sample" in answer["command"]) == (given == sample)
