"""Checks of numbers: finite weights and activations, bfloat16 and float16, and certified attention weights."""

import math

import torch
from torch import Tensor, nn

from transom.inspection.activations import Activations
from transom.inspection.certify import certify
from transom.inspection.derive_attention import is_exact
from transom.inspection.doctor.checkup import Checkup, outputs
from transom.inspection.doctor.finding import Finding, not_applicable, within
from transom.layers.observe import ActivationRecorder
from transom.layers.recurrent.recurrent_decoder import SourceAttention
from transom.models.base import Network
from transom.models.encoder import TextEmbedderTransformer
from transom.models.inputs import TensorBatch

MAX_FP16 = torch.finfo(torch.float16).max
"""Largest number of float16."""

MAX_KL = 0.05
"""Nats that the logits of a lower precision may lose per prediction, on average."""

MAX_RELATIVE_ERROR = 4.0
"""Bound of the error of bfloat16 logits, as a multiple of eps times the root of the number of layers."""


def finite(checkup: Checkup) -> Finding:
    """Look for NaN and infinity in weights, buffers and the activations of a pass."""
    state = {**dict(checkup.model.named_parameters()), **dict(checkup.model.named_buffers())}
    with torch.no_grad():
        found = checkup.share("sites", _record_sites)
    bad = [name for name, x in {**state, **found}.items() if x.is_floating_point() and not bool(x.isfinite().all())]
    return within(
        len(bad),
        0,
        f"{len(bad):,} of {len(state) + len(found):,} weights and activations have NaN or infinite values"
        + (f", the first {bad[0]}" if bad else ""),
        "load an earlier checkpoint, and lower training.learning_rate or training.max_grad_norm",
    )


def _record_sites(checkup: Checkup) -> dict[str, Tensor]:
    """Run the probe, and return all sites and the logits."""
    recorder = ActivationRecorder(["*"])
    logits = checkup.model(checkup.probe, recorder)
    return recorder.activations | {"logits": logits}


def fp16_range(checkup: Checkup) -> Finding:
    """Compare the largest activation with the largest number of float16."""
    with torch.no_grad():
        found = checkup.share("sites", _record_sites)
    peaks = {name: float(x.abs().max()) for name, x in found.items() if x.is_floating_point() and x.numel()}
    name = max(peaks, key=lambda each: peaks[each])
    largest, bound = peaks[name], MAX_FP16 / 4
    message = f"the largest activation is {largest:.3g} ({name}); float16 ends at {MAX_FP16:,.0f}"
    if largest <= bound:
        return Finding("ok", message, "", largest, bound)
    trained_so = checkup.recipe is not None and checkup.recipe.training.precision == "fp16"
    return Finding("problem" if trained_so else "warning", message, "use bf16 or fp32 for this model, never fp16", largest, bound)


def dtype(checkup: Checkup) -> Finding:
    """Compare bfloat16 logits with float32 ones: their error, the best class or token, and the divergence of the distributions.

    A divergence that rounding of this size explains, such as that of very large logits, is a warning; a larger one is a problem.
    """
    wide, narrow = (_logits(model, checkup.probe) for model in (checkup.model, checkup.bf16))
    spread = float((wide - wide.mean(-1, keepdim=True)).square().mean().sqrt())
    error = float((narrow - wide).square().mean().sqrt())
    n_layers = sum(name.endswith(("attn", "cross", "ff")) for name, _ in checkup.model.named_modules()) + 2
    bound = MAX_RELATIVE_ERROR * torch.finfo(torch.bfloat16).eps * math.sqrt(n_layers)
    relative = error / max(spread, torch.finfo(torch.float32).tiny)
    log_p, log_q = wide.log_softmax(-1), narrow.log_softmax(-1)
    kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    agreement = float((wide.argmax(-1) == narrow.argmax(-1)).float().mean())
    message = (
        f"bf16 logits differ from fp32 by {relative:.2%} of their spread (rounding: {bound:.0%}), lose {kl:.2g} nats (bound {MAX_KL}),"
        f" and agree on {agreement:.1%} of the best"
    )
    advice = "use --precision fp32; large offsets or logits lose their digits in bf16: try weight decay or a softcap"
    if kl <= MAX_KL:
        return Finding("ok", message, "", kl, MAX_KL)
    return Finding("warning" if relative <= bound else "problem", message, advice, kl, MAX_KL)


@torch.no_grad()
def _logits(model: Network, batch: TensorBatch) -> Tensor:
    """Return the logits at all tokens, in float32."""
    if isinstance(model, TextEmbedderTransformer):
        return model(batch).float()
    return outputs(model, batch).float()


def _is_certified(attention: nn.Module) -> bool:
    """Return whether a module is an attention layer whose weights are no approximation."""
    return is_exact(attention) or isinstance(attention, SourceAttention)


def certificates(checkup: Checkup) -> Finding:
    """Certify that recomputed attention weights give the head outputs of the kernels."""
    with torch.no_grad():
        a = Activations(checkup.model, checkup.probe, checkup.share("sites", _record_sites))
    layers = [name for name, module in checkup.model.named_modules() if _is_certified(module)]
    if not layers:
        return not_applicable("the model has no attention whose weights are exact")
    results = [certify(a, name) for name in layers if f"{name}.z" in a.recorded]
    if not results:
        return not_applicable("no token reached a layer with attention")
    worst = max(results, key=lambda each: each.ratio)
    n_maps = sum(each.n_maps for each in results)
    return within(
        worst.ratio,
        1.0,
        f"{n_maps:,} attention maps give the outputs of the kernels; the largest error is {worst.ratio:.2g} of its rounding bound"
        f" ({worst.address})",
        f"the kernel of {worst.address} is wrong ({worst.cause or 'no usual fault explains it'}): set TRANSOM_KERNELS=reference",
    )
