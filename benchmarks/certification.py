"""Seed faults into one path of attention, kernel or recomputation, and count which the certificates of traced maps find.

    python -m benchmarks.certification [--steps N] [--maps N]

Five small models are trained first: random weights have nearly uniform attention, in which many faults are small. Every fault is seeded
alone, on a model that has the feature. False alarms are counted on maps of the same models without a fault.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.inspection import activations
from transom.inspection.activations import Activations, sublayer_input
from transom.inspection.derive_attention import AttentionInputs
from transom.inspection.trace import map_owners, trace
from transom.layers.attention import Attention, repeat_kv, scaled_dot_product_attention
from transom.layers.context import ALL_PAIRS, AttentionContext, Part
from transom.layers.position_encoding import apply_rotary
from transom.models.base import Network
from transom.models.build import build_model

VOCAB, LENGTH, ROWS = 40, 48, 8

_SIZE = {"d_model": 64, "n_layers": 3, "n_heads": 8, "d_ff": 128, "max_seq_len": LENGTH, "dropout": 0.0, "vocab_size": VOCAB}
_PAIRS = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "n_encoder_layers": 3, "n_decoder_layers": 3}
MODELS: dict[str, Any] = {
    "gpt2": DecoderConfig.model_validate(_SIZE),
    "llama": DecoderConfig.model_validate(_SIZE | {"n_kv_heads": 2, "position": {"kind": "rotary"}, "norm": "rmsnorm"}),
    "window": DecoderConfig.model_validate(
        _SIZE | {"position": {"kind": "rotary"}, "attention": {"pattern": {"kind": "window", "size": 12}}}
    ),
    "alibi": DecoderConfig.model_validate(_SIZE | {"position": {"kind": "alibi"}, "attention": {"softcap": 2.0}}),
    "transformer": Seq2SeqConfig.model_validate({k: v for k, v in (_SIZE | _PAIRS).items() if k not in ("vocab_size", "n_layers")}),
}
"""Models by name; together they have every feature that a fault needs."""


def draw_batch(seed: int) -> TranslationBatch:
    """Draw rows in which a random phrase is repeated, of different lengths: a model must attend to the phrase to continue it."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in torch.randint(LENGTH // 2, LENGTH, (ROWS,), generator=generator).tolist():
        phrase = torch.randint(3, VOCAB, (int(torch.randint(3, 9, (), generator=generator)),), generator=generator).tolist()
        rows.append((phrase * LENGTH)[:length])
    sequences = PaddedSequences.pad(rows)
    labels = F.pad(sequences.tokens[:, 1:], (0, 1))
    return TranslationBatch(sequences, sequences, labels, tuple(range(ROWS)))


def train(name: str, steps: int) -> Network:
    """Train a model to continue the repeated phrases."""
    torch.manual_seed(1)
    model = build_model(MODELS[name]).train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for step in range(steps):
        batch = draw_batch(step)
        loss = F.cross_entropy(model(batch)[batch.loss_mask], batch.labels[batch.loss_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


class Fault(NamedTuple):
    """A fault of the recomputation.

    Attributes:
        model: name of the model into which it is seeded.
        change: changes the inputs from which maps are computed, given the pass, the layer and the part of the map.
    """

    model: str
    change: Callable[..., AttentionInputs]


def _mask(change: Callable[[Tensor], Tensor]) -> Callable[..., AttentionInputs]:
    def changed(i: AttentionInputs, *_: Any) -> AttentionInputs:
        assert i.args.mask is not None
        return i._replace(args=i.args._replace(mask=change(i.args.mask)))

    return changed


def _rotate(times: int) -> Callable[..., AttentionInputs]:
    """Return the change in which queries and keys are rotated ``times`` times in place of once."""

    def changed(i: AttentionInputs, a: Activations, path: str, part: Part) -> AttentionInputs:
        ctx = activations.attention_context(a, path)
        q, k = (a[f"{path}.{name}_proj"] for name in "qk")
        for _ in range(times):
            q, k = apply_rotary(q, ctx.rotary), apply_rotary(k, ctx.rotary)
        groups = q.shape[1] // k.shape[1]
        return i._replace(q=q[:, :, part.queries], k=k.repeat_interleave(groups, 1)[:, :, part.keys])

    return changed


def _other_block(i: AttentionInputs, a: Activations, path: str, part: Part) -> AttentionInputs:
    stack, _, rest = path.partition(".blocks.")
    number, _, name = rest.partition(".")
    other = f"{stack}.blocks.{(int(number) + 1) % 3}.{name}"
    return i._replace(q=a[f"{other}.q"][:, :, part.queries], k=a[f"{other}.k"][:, :, part.keys])


def _stale(i: AttentionInputs, a: Activations, path: str, part: Part) -> AttentionInputs:
    """Use queries of other weights: W_Q differs by a thousandth of its size, as after a step of the optimizer."""
    w = a.module(path).q.weight
    change = 1e-3 * w.abs().mean() * torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
    by = F.linear(sublayer_input(a, path), change).unflatten(-1, (i.q.shape[1], -1)).transpose(1, 2)
    return i._replace(q=i.q + by[:, :, part.queries])


def _rescaled(factor: float, i: AttentionInputs, *_: Any) -> AttentionInputs:
    return i._replace(q=i.q * factor)


def _next_token(mask: Tensor) -> Tensor:
    """Shift a mask by one key, so that every token sees the next one."""
    shifted = mask.roll(1, -1)
    shifted[..., 0] = True
    return shifted


FAULTS: dict[str, Fault] = {
    "scale": Fault("gpt2", lambda i, *_: i._replace(q=i.q * i.q.shape[-1] ** 0.5)),
    "mask off by one": Fault("gpt2", _mask(_next_token)),
    "wrong group": Fault("llama", lambda i, *_: i._replace(k=i.k.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2))),
    "rotation missing": Fault("llama", _rotate(0)),
    "rotation twice": Fault("llama", _rotate(2)),
    "window": Fault("window", lambda i, a, path, part: i._replace(args=i.args._replace(mask=_causal(a, part)))),
    "soft-cap": Fault("alibi", lambda i, *_: i._replace(args=i.args._replace(softcap=None))),
    "bias": Fault("alibi", lambda i, *_: i._replace(args=i.args._replace(bias=None))),
    "padding": Fault("transformer", lambda i, *_: i._replace(args=i.args._replace(mask=None))),
    "dtype": Fault("gpt2", lambda i, *_: i._replace(q=i.q.bfloat16().float(), k=i.k.bfloat16().float())),
    "wrong block": Fault("gpt2", _other_block),
    "wrong head": Fault("gpt2", lambda i, *_: i._replace(q=i.q.roll(1, 1))),
    "stale weights": Fault("gpt2", _stale),
}
"""Faults by name; those of the map itself are in ``MAP_FAULTS``."""

MAP_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {"zeroed map": torch.zeros_like, "sign-flipped map": torch.neg}


def _causal(a: Activations, part: Part) -> Tensor:
    tokens = a.batch.decoder_input.segments
    n = tokens.shape[1]
    mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None] & (tokens > 0)[:, None, None]
    return mask[:, :, part.queries][..., part.keys]


@contextmanager
def seeded(fault: str | Fault) -> Iterator[None]:
    """Seed a fault, or the fault of a name, into the recomputation of maps."""
    if isinstance(fault, str) and fault in MAP_FAULTS:
        change, weights = MAP_FAULTS[fault], AttentionInputs.weights
        with patch.object(AttentionInputs, "weights", lambda self: change(weights(self))):
            yield
        return
    original, seed = AttentionInputs.of, FAULTS[fault] if isinstance(fault, str) else fault

    def of(a: Activations, path: str, heads: Any = None, part: Part = ALL_PAIRS) -> AttentionInputs:
        return seed.change(original(a, path, heads, part), a, path, part)

    with patch.object(AttentionInputs, "of", of):
        yield


def traced(model: Network, seed: int) -> Any:
    """Trace all maps of a batch, with everything from which faults are made."""
    return trace(model, draw_batch(seed), ["*.weights"], store="all")[1]


def find_faults(steps: int) -> dict[str, dict[str, Any]]:
    """Seed every fault, once into the recomputation and once into the kernel of each layer in turn.

    Returns:
        Per fault the largest ratio of a layer to its bound; for the kernel also the number of layers that were found out of all, and the
        largest ratio of a layer without the fault.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in MODELS:
        model = train(name, steps)
        for fault in (fault for fault in (*FAULTS, *MAP_FAULTS) if fault_model(fault) == name):
            kernel = kernel_ratios(model, fault)
            found[fault] = {
                "recomputation": max(recomputation_ratios(model, fault)),
                "kernel": max(own for own, _ in kernel),
                "layers": len(kernel),
                "layers_found": sum(own > 1 for own, _ in kernel),
                "other_layers": max(others for _, others in kernel),
            }
    return found


def fault_model(fault: str) -> str:
    """Return the name of the model into which a fault is seeded."""
    return FAULTS[fault].model if fault in FAULTS else "gpt2"


def recomputation_ratios(model: Network, fault: str) -> list[float]:
    """Return the ratio of each layer with a fault in the recomputation."""
    found = traced(model, -1)
    with seeded(fault):
        return [each.ratio for each in found.certify()]


@contextmanager
def faulty_kernel(a: Activations, fault: str, path: str) -> Iterator[None]:
    """Let the kernel of one layer compute with a fault; ``a`` holds the same pass without it, from which inputs of other layers come."""
    faulty, attend = a.module(path), Attention.attend

    def attend_wrongly(self: Attention, q: Tensor, memory: Any, ctx: AttentionContext) -> Tensor:
        if self is not faulty:
            return attend(self, q, memory, ctx)
        if fault in MAP_FAULTS:
            return MAP_FAULTS[fault](attend(self, q, memory, ctx))  # Z = A V
        k, v = (repeat_kv(x, self.n_heads) for x in memory)
        i = FAULTS[fault].change(AttentionInputs(q, k, self.attention_args(ctx)), a, path, ALL_PAIRS)
        return scaled_dot_product_attention(i.q, i.k, v, i.args)

    with patch.object(Attention, "attend", attend_wrongly):
        yield


def kernel_ratios(model: Network, fault: str) -> list[tuple[float, float]]:
    """Run the model once per attention layer, with the fault in its kernel; return its ratio and the largest of the others."""
    clean, ratios = traced(model, -1), list[tuple[float, float]]()
    for path in map_owners(clean):
        with faulty_kernel(clean.activations, fault, path):
            found = traced(model, -1)
        by_layer = {each.address: each.ratio for each in found.certify()}
        ratios.append((by_layer.pop(path), max(by_layer.values())))
    return ratios


def count_false_alarms(steps: int, n_maps: int) -> dict[str, float]:
    """Certify maps without a fault until ``n_maps`` are reached; return their number, the alarms and the largest ratio."""
    models = [train(name, steps) for name in MODELS]
    maps, alarms, largest, seed = 0, 0, 0.0, 10_000
    while maps < n_maps:
        for model in models:
            for each in traced(model, seed).certify():
                maps, alarms, largest = maps + each.n_maps, alarms + (0 if each.ok else each.n_maps), max(largest, each.ratio)
        seed += 1
    return {"maps": maps, "false_alarms": alarms, "largest_ratio": largest}


def smallest_in_bfloat16(steps: int) -> dict[str, float]:
    """Return the smallest relative change of the scores' scale that the certificate of a layer finds, in bfloat16 and in float32."""
    found = {}
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        model = train("gpt2", steps).to(dtype)
        a = traced(model, -1)
        delta = 1.0
        for _ in range(40):
            with seeded(Fault("gpt2", partial(_rescaled, 1 + delta))):
                if all(each.ok for each in a.certify()):
                    break
            delta /= 1.25
        found[name] = delta * 1.25
    return found


def measure(steps: int, n_maps: int) -> dict[str, Any]:
    """Run all parts and print them; return the results."""
    result: dict[str, Any] = {"faults": find_faults(steps)}
    for fault, ratios in result["faults"].items():
        print(f"{fault:18s} " + "  ".join(f"{name}: {value:.3g}" for name, value in ratios.items()), flush=True)
    result |= {"no_fault": count_false_alarms(steps, n_maps), "smallest_scale": smallest_in_bfloat16(steps)}
    print(result["no_fault"], result["smallest_scale"], flush=True)
    return result


def main(arguments: list[str] | None = None) -> None:
    """Measure and print; ``python -m benchmarks.tracing`` does so too, and writes the results with its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certification", description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="training steps of each model")
    parser.add_argument("--maps", type=int, default=10_000, help="maps to certify without a fault")
    args = parser.parse_args(arguments)
    measure(args.steps, args.maps)


if __name__ == "__main__":
    main()
