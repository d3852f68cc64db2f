"""Compute every native element-wise operation, forward and backward, in odd shapes, with a library that sanitizers watch.

python -m tests.kernels.sanitize_elementwise LIBRARY
"""

import ctypes
import itertools
import sys

import torch
from torch import Tensor

from transom.kernels import attention, elementwise, feed_forward, linear, log_probabilities
from transom.kernels.native_library import NativeLibrary, declare_elementwise_functions
from transom.layers.attention import AttentionArgs
from transom.layers.dropout import KeyedMasks


def run(library: ctypes.CDLL) -> int:
    """Compute every operation; return how many results there were."""
    for module in (elementwise, linear, attention):
        module.load_elementwise_library = lambda: NativeLibrary(library, "under a sanitizer")  # type: ignore[attr-defined]
    feed_forward.CHUNK_BYTES = 4 * 37 * 300  # two parts and more of the longest
    n_results = 0
    shapes = ((1, 1), (3, 17), (65, 33), (700, 50), (3, 1100))
    for threads, dtype, shape in itertools.product((1, 3), (torch.bfloat16, torch.float32), shapes):
        torch.set_num_threads(threads)
        x, up = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(2))
        weight, bias = (torch.randn(shape[-1]).requires_grad_() for _ in range(2))
        found: list[Tensor] = [elementwise.layer_norm(x, weight, bias, 1e-5), elementwise.layer_norm(x, weight, None, 1e-5)]
        found.append(elementwise.rms_norm(x, weight, 1e-5))
        for activation in elementwise.CODES:
            found += [elementwise.activate(x, up, activation), elementwise.activate(x, None, activation)]
        first, second = torch.randn(37, shape[1]).to(dtype), torch.randn(shape[1], 37).to(dtype)
        for activation, gate in itertools.product(elementwise.CODES, (None, first)):
            found.append(
                feed_forward.transform_tokens(x, first, second, None if gate is not None else torch.randn(37), None, gate, activation)
            )
        given = x[None, :1].expand(shape[0], 1, shape[1]).transpose(0, 1), first, second, torch.randn(1).expand(37)
        found.append(feed_forward.transform_tokens(*given, None, None, torch.nn.functional.gelu))
        angles = torch.randn(1, 1, shape[0], shape[1] // 2)
        heads = x.view(1, shape[0], 1, shape[1]).transpose(1, 2)
        found.append(elementwise.rotate(heads, angles.cos(), angles.sin()))
        masks = KeyedMasks(torch.randint(2**62, (shape[0],)), (3,))
        found += [elementwise.drop_keyed(x, up, masks, 0.5), elementwise.drop_keyed(x, None, masks, 1e-3)]
        sum(each.float().sum() for each in found).backward()  # type: ignore[union-attr]
        assert all(each.isfinite().all() for each in (*found, x.grad, up.grad, weight.grad, bias.grad) if each is not None)
        n_results += len(found)
        q, k, v = (torch.randn(2, heads, shape[0], width, requires_grad=True) for heads, width in ((4, 48), (2, 48), (2, 16)))
        unit = linear.missing_matrix_unit() is None
        for mask in (None, torch.ones(shape[0], shape[0], dtype=torch.bool).tril()[None, None]):
            for of_type in (torch.float32, *([torch.bfloat16] if unit else [])):
                z = attention.native_attention(q.to(of_type), k.to(of_type), v.to(of_type), AttentionArgs(mask))
                z.sum().backward()
                assert z.isfinite().all()
                n_results += 1
        if unit:
            grad, inputs = torch.randn(shape).bfloat16(), torch.randn(shape[0], 37).bfloat16()
            assert linear.weight_gradient(grad, inputs, with_bias=True, add_to=torch.zeros(shape[1], 37)).weight.isfinite().all()
            for each in linear.weight_gradients([grad, inputs, grad[:, :5]], inputs, [True, False, True]):
                assert each.weight.isfinite().all() and (each.bias is None or each.bias.isfinite().all())
            n_results += 4
        elementwise.logits_softmax_(torch.randn(shape).to(dtype), torch.empty(shape[0]))
        log_probabilities.largest(log_probabilities.log_softmax_(torch.randn(shape)))
        p = torch.randn(1, 2, *shape).to(dtype)
        for mask in (None, torch.ones(shape, dtype=torch.bool).tril()[None, None], torch.zeros(1, 1, 1, shape[1], dtype=torch.bool)):
            elementwise.softmax_(p, mask)
            elementwise.softmax_backward_(p, torch.randn_like(p))
            n_results += 2
    return n_results


if __name__ == "__main__":
    print(run(declare_elementwise_functions(ctypes.CDLL(sys.argv[1]))), "results")
