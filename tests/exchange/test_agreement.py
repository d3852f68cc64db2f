"""Every family and feature against the transformers library: logits, attention weights, greedy tokens, and round trips bit for bit."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.exchange.foreign_models import CASES, LENGTH, ForeignCase, LibraryInFloat64, inputs
from tests.tiers import tiers
from transom.checkpoints.run_folder import RunFolder
from transom.exchange.config_rows import OWN_OUTPUT
from transom.exchange.export_model import choose_family, convert_model, write_foreign_weights
from transom.exchange.foreign_folder import ForeignFolder
from transom.exchange.import_model import new_run_id, open_foreign_model, write_weights
from transom.exchange.side_files import write_classes
from transom.files.atomic_io import json_bytes
from transom.inspection.trace import trace
from transom.layers.position_encoding import sinusoidal_table
from transom.models.base import LanguageModel, Network
from transom.models.build import build_uninitialized
from transom.models.encoder import TextEmbedderTransformer
from transom.models.inputs import TokenSequences

EXACT, CLOSE = 1e-10, 1e-5


def imported(folder: Path, case: ForeignCase, out: Path) -> RunFolder:
    """Import the weights of a folder, without a tokenizer."""
    model = open_foreign_model(ForeignFolder(folder), case.from_data)
    assert not model.notes or all("pooler" in note or "dropout" in note for note in model.notes), model.notes
    with RunFolder.create(out) as run:
        run.write_config(model.config, new_run_id())
        write_weights(model, run)
    return RunFolder.open(out)


def exported(run: RunFolder, case: ForeignCase, out: Path) -> Path:
    """Export the weights of a run as the family that it came from, without a tokenizer."""
    config = run.load_config()
    family = choose_family(config, case.model_type)
    model = convert_model(config, run.read_weights("model.safetensors"), family)
    out.mkdir()
    fields = {name: value for name, value in model.config.items() if name != OWN_OUTPUT}
    fields |= write_classes(config.model_dump()) if "classes" in config.FROM_DATA else {}
    fields |= {name: value for name, value in case.options.items() if name.endswith("token_id")}
    (out / "config.json").write_bytes(json_bytes(fields))
    write_foreign_weights(model, out)
    return out


def load_ours(run: RunFolder, dtype: torch.dtype) -> Network:
    """Build the model of a run, with position tables of the dtype."""
    model = build_uninitialized(run.load_config()).to(dtype).eval()
    run.load_weights(model)
    return model


def load_theirs(case: ForeignCase, folder: Path, dtype: torch.dtype) -> Any:
    """Load a folder with the library's class, with its explicit attention."""
    cls = getattr(transformers, case.architecture)
    model = cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    if case.model_type == "marian":  # its sinusoids are rounded to float32
        table = sinusoidal_table(LENGTH, model.config.d_model, dtype=dtype)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(torch.cat([table[:, 0::2], table[:, 1::2]], 1))
    return model


def their_output(case: ForeignCase, folder: Path, dtype: torch.dtype, given: dict[str, Tensor], **options: Any) -> Tensor:
    """Return the library's logits, or the last hidden states of an encoder without a head."""
    with LibraryInFloat64() if dtype == torch.float64 else nullcontext():
        found = load_theirs(case, folder, dtype)(**given, **options)
    output: Tensor = found.logits if "logits" in found else found.last_hidden_state
    return output


def our_logits(model: Network, given: dict[str, Tensor], attention_mask: Tensor | None = None) -> Tensor:
    """Return our logits for inputs by the library's names, or the last hidden states of an encoder without a head."""
    if isinstance(model, TextEmbedderTransformer):
        batch = model.make_batch(given["input_ids"], attention_mask, given["input_ids"], attention_mask)
        assert batch.source is not None
        return model.encode(batch.source)
    if "pixel_values" in given:
        return model(given["pixel_values"])
    pairs = {"decoder_tokens": given["decoder_input_ids"]} if "decoder_input_ids" in given else {}
    return model(given["input_ids"], attention_mask=attention_mask, **pairs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ForeignCase], tuple[Path, RunFolder]]:
    """Return a function that gives the folder of a case in float64, and the run imported from it; each is made once."""

    @cache
    def make(case_name: str) -> tuple[Path, RunFolder]:
        (case,) = (each for each in CASES if each.name == case_name)
        folder = tmp_path_factory.mktemp(case_name)
        return case.save(folder / "theirs", torch.float64), imported(folder / "theirs", case, folder / "run")

    return lambda case: make(case.name)


BASE = [case for case in CASES if "-" not in case.name or case.name.endswith(("-masked", "-distilled"))]
"""One case per family."""

VARIANTS = [case for case in CASES if case not in BASE]
ALL = [*BASE, *tiers(VARIANTS, long=VARIANTS)]
"""The first tier has one case per family; all are in ``make ci``."""


def named(case: object) -> str | None:
    """Return the name of a case, as id of a test."""
    return case.name if isinstance(case, ForeignCase) else None


Saved = Callable[[ForeignCase], tuple[Path, RunFolder]]


@torch.no_grad()
@pytest.mark.parametrize("case", ALL, ids=named)
def test_logits_are_theirs(case: ForeignCase, saved: Saved) -> None:
    folder, run = saved(case)
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, CLOSE)):
        ours, given = load_ours(run, dtype), inputs(run.load_config().kind, dtype)  # type: ignore[attr-defined]
        expected = their_output(case, folder, dtype, given)
        found = our_logits(ours, given)
        assert found.shape == expected.shape and (found - expected).abs().max() <= tolerance * max(1.0, float(expected.abs().max()))


FIXED_POSITIONS = ("distilbert", "marian", "bart")
"""Families whose positions the library counts from the first column, padding included; t5 has none, and roberta skips padding."""


TEXTS = [case for case in CASES if "Image" not in case.architecture and case.name != "llama-longrope"]
"""Cases with padding; the frequencies of longrope depend on the longest text of a batch in the library, and on each text alone in ours."""


@torch.no_grad()
@pytest.mark.long
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", TEXTS, ids=named)
def test_padding_changes_nothing(case: ForeignCase, side: str, saved: Saved) -> None:
    """Pad on either side; a model that counts columns, or classifies the first one, gets its padding on the right in the library."""
    folder, run = saved(case)
    kind = run.load_config().kind  # type: ignore[attr-defined]
    given = inputs(kind)
    pad, lengths = 1 if case.model_type in ("roberta", "bart", "marian") else 0, (24, 19, 15)
    found = our_logits(load_ours(run, torch.float64), *padded(given, lengths, pad, side))
    their_side = "right" if case.model_type in FIXED_POSITIONS or kind == "text-classifier" else side
    tokens, mask = padded(given, lengths, pad, their_side)
    counted = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if kind == "decoder" or case.model_type == "bert" else {}
    expected = their_output(case, folder, torch.float64, tokens, attention_mask=mask, **counted)
    if kind in ("decoder", "encoder", "text-embedder"):
        found, expected = found[padded(given, lengths, pad, side)[1].bool()], expected[mask.bool()]
    assert (found - expected).abs().max() <= EXACT * max(1.0, float(expected.abs().max()))


def padded(given: dict[str, Tensor], lengths: tuple[int, ...], pad: int, side: str) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs with the first tokens of each row and padding on one side, and the attention mask."""
    tokens, mask = (torch.full_like(given["input_ids"], value) for value in (pad, 0))
    for row, n in enumerate(lengths):
        part = slice(-n, None) if side == "left" else slice(0, n)
        tokens[row, part], mask[row, part] = given["input_ids"][row, :n], 1
    return given | {"input_ids": tokens}, mask


@torch.no_grad()
@pytest.mark.parametrize("case", [CASES[0], *tiers(CASES[1:], long=CASES)], ids=named)
def test_round_trips_are_bit_equal(case: ForeignCase, tmp_path: Path) -> None:
    run = imported(case.save(tmp_path / "theirs"), case, tmp_path / "run")
    again = imported(exported(run, case, tmp_path / "exported"), case, tmp_path / "again")
    assert run.load_config() == again.load_config()
    first, second = (each.read_weights("model.safetensors") for each in (run, again))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    given = inputs(run.load_config().kind, torch.float32)  # type: ignore[attr-defined]
    theirs, back = (their_output(case, tmp_path / folder, torch.float32, given) for folder in ("theirs", "exported"))
    assert (theirs - back).abs().max() <= 1e-6 * max(1.0, float(theirs.abs().max()))


DECODERS = [case for case in CASES if case.architecture.endswith(("LMHeadModel", "ForCausalLM")) and case.name != "llama-longrope"]
"""All decoders but one whose frequencies the library changes while it decodes, and keeps in the keys that it has cached."""
N_GREEDY = 200


@torch.no_grad()
@pytest.mark.parametrize("case", tiers(DECODERS, long=[case for case in DECODERS if case in BASE]), ids=named)
def test_200_greedy_tokens_are_theirs(case: ForeignCase, tmp_path: Path) -> None:
    """Decode step by step with our cache, past the window and the trained length, and by the library's ``generate``."""
    longer = {name: 256 for name in ("n_positions", "max_position_embeddings") if name in case.options}
    case = replace(case, options={**case.options, **longer, "eos_token_id": None, "pad_token_id": 0})
    run = imported(case.save(tmp_path / "theirs", torch.float64), case, tmp_path / "run")
    ours, prompt = load_ours(run, torch.float64), inputs("decoder")["input_ids"][:1, :8]
    assert isinstance(ours, LanguageModel)
    with LibraryInFloat64():
        model = load_theirs(case, tmp_path / "theirs", torch.float64)
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=N_GREEDY)
    cache, tokens = ours.start(TokenSequences.from_tokens(prompt), 1, N_GREEDY), prompt.tolist()[0]
    for _ in range(N_GREEDY):
        tokens.append(int(ours.step(torch.tensor([tokens[-1:]]), cache)[0, -1].argmax()))
    assert tokens == expected[0].tolist()


@torch.no_grad()
@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=named)
def test_attention_weights_are_theirs(case: ForeignCase, saved: Saved) -> None:
    """Compare the weights that inspection recomputes from queries and keys with those of the library's explicit attention."""
    folder, run = saved(case)
    ours, given = load_ours(run, torch.float64), inputs(run.load_config().kind)  # type: ignore[attr-defined]
    pairs = {"decoder_tokens": given["decoder_input_ids"]} if "decoder_input_ids" in given else {}
    if isinstance(ours, TextEmbedderTransformer):
        pairs = {"decoder_tokens": given["input_ids"]}
    _, found = trace(ours, ours.as_batch(given.get("input_ids", given.get("pixel_values")), **pairs), ["weights"])
    with LibraryInFloat64():
        expected = load_theirs(case, folder, torch.float64)(**given, output_attentions=True)
    stack = "decoder" if isinstance(ours, LanguageModel) else "encoder"
    layers = {"attentions": (stack, "attn"), "encoder_attentions": ("encoder", "attn"), "decoder_attentions": ("decoder", "attn")}
    layers |= {"cross_attentions": ("decoder", "cross")}
    n_compared = 0
    for name, (of_stack, layer) in layers.items():
        for block, weights in enumerate(expected.get(name) or ()):
            assert (found[f"{of_stack}.blocks.{block}.{layer}.weights"] - weights).abs().max() <= EXACT, (name, block)
            n_compared += 1
    assert n_compared == sum(ours.config.stacks) + (ours.config.stacks[-1] if expected.get("cross_attentions") else 0)
