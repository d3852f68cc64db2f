"""The steps of a convolutional stem: for each stage one value of each convolution, its norm, ReLU, channel attention, and pooling."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transom.inspection.explain.approximations import carried
from transom.inspection.explain.builder import Builder, linear_weight, number, numbers
from transom.inspection.explain.expressions import Expression, Maximum, Number, Power, Product, Sum, dot, exact, sigmoid, sqrt
from transom.inspection.explain.feed_forward import relu
from transom.inspection.messages.tables import message
from transom.layers.vision.channel_attention import Cbam, ChannelAttention, SqueezeExcitation
from transom.layers.vision.conv_stem import ConvBlock, ConvStem, PixelNormalization

MAX_SUM = 4096
"""Values of a statistic that are terms of its sum; of more, the terms are the exact sums of their rows."""

Place = tuple[int, int, int]
"""Channel, row and column of a value in a feature map."""


def normalized_pixel(b: Builder, pixels: PixelNormalization, place: Place, traced: Tensor) -> Number:
    """Add the normalization of one pixel."""
    channel, row, column = place
    expression = (number(b.a.batch.pixels[0, channel, row, column]) - Number(pixels.mean[channel])) / Number(pixels.std[channel])
    label = message("explain.labels.pixel", row=str(row), column=str(column))
    return b.calculate(label, message("explain.convolution.pixel", channel=str(channel)), expression, traced)


def stem_steps(b: Builder, path: str, pixels: PixelNormalization, place: Place) -> None:
    """Add the steps that give one value of the last feature map of a stem.

    The steps of a stage give a value that the next stage reads; of each feature map the channel ``dim`` is followed.

    Args:
        b: the hand calculation.
        path: path of the stem.
        pixels: normalization of the pixels.
        place: channel, row and column of the value in the last feature map.
    """
    stem: ConvStem = b.a.module(path)
    inputs = [pixels(b.a.batch.pixels[:1]), *(b.a[f"{path}.stages.{n}"][:1] for n in range(len(stem.stages) - 1))]
    wanted = [place]
    for n in reversed(range(1, len(stem.stages))):  # the value that a stage's convolutions read lies below the maximum of its window
        channel, row, column = wanted[0]
        row, column = _largest(_through(stem.stages[n], inputs[n])[-1][0, channel], row, column)
        wanted.insert(0, (b.at(inputs[n].shape[1]), row, column))
    for n, (stage, target) in enumerate(zip(stem.stages, wanted, strict=True)):
        _stage_steps(b, path, n, stage, inputs[n], target, pixels)


def _through(stage: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the input of a stage and the output of each of its blocks."""
    assert isinstance(stage, nn.Sequential)
    maps = [x]
    for block in stage:
        maps.append(block(maps[-1].contiguous(memory_format=torch.channels_last)))
    return maps


def _largest(x: Tensor, row: int, column: int) -> tuple[int, int]:
    """Return row and column of the largest value in the pooling window of a value of the pooled map."""
    rows, columns = (range(max(2 * at - 1, 0), min(2 * at + 2, size)) for at, size in zip((row, column), x.shape, strict=True))
    return max(((r, c) for r in rows for c in columns), key=lambda at: float(x[at]))


def _stage_steps(b: Builder, path: str, n: int, stage: nn.Module, x: Tensor, target: Place, pixels: PixelNormalization) -> None:
    """Add the steps of one stage: its blocks at one place, and the maximum of the window of the pooling."""
    maps, (channel, row, column) = _through(stage, x), target
    last = maps[-1][0, channel]
    at = _largest(last, row, column)
    b.section(message("explain.convolution.stage", stage=str(n)))
    b.note(message("explain.convolution.map", rows=str(last.shape[0]), columns=str(last.shape[1])))
    blocks = [block for block in stage.modules() if isinstance(block, ConvBlock)]
    found = Number(0.0)
    for number_of_block, block in enumerate(blocks):
        out = channel if number_of_block == len(blocks) - 1 else b.at(block.conv.out_channels)
        if n == 0 and number_of_block == 0:
            normalized_pixel(b, pixels, (0, *at), x[0, 0, at[0], at[1]])
        found = _block_steps(b, block, maps[number_of_block][0], (out, *at))
    places = {"row": row, "column": column, "center_row": 2 * row, "center_column": 2 * column}
    b.note(message("explain.convolution.window", **{name: str(at) for name, at in places.items()}))
    rows, columns = (range(max(2 * place - 1, 0), min(2 * place + 2, size)) for place, size in zip((row, column), last.shape, strict=True))
    window = Maximum(
        [found if (r, c) == at else number(last[r, c]) for r, c in sorted(((r, c) for r in rows for c in columns), key=at.__ne__)]
    )
    label = message("explain.labels.map", channel=str(channel), row=str(row), column=str(column))
    b.site(label, message("explain.convolution.maximum"), window, f"{path}.stages.{n}", (0, channel, row, column))


def _block_steps(b: Builder, block: ConvBlock, x: Tensor, place: Place) -> Number:
    """Add convolution, norm, ReLU and channel attention at one place; return the value."""
    channel, row, column = place
    conv = block.conv(x[None])[0]
    normed = block.norm(conv[None])[0]
    rows, columns = (range(max(at - 1, 0), min(at + 2, size)) for at, size in zip((row, column), x.shape[1:], strict=True))
    weight = block.conv.weight[channel]
    products = [
        Product((number(x[c, r, k]), number(weight[c, r - row + 1, k - column + 1]))) for c in range(len(x)) for r in rows for k in columns
    ]
    where = f"{channel} ({row}, {column})"
    formula = message("explain.convolution.sum", channels=str(len(x)))
    y = b.calculate(f"conv {where}", formula, Sum(products), conv[channel, row, column])
    hidden = b.calculate(
        f"relu {where}", "max(0, x)", relu(_norm_steps(b, block.norm, conv, y, place, normed)), F.relu(normed)[channel, row, column]
    )
    return _attention_steps(b, block.attention, F.relu(normed), hidden, place)


def _sum(values: Tensor) -> Sum:
    """Return the sum of a matrix; of a large one, the sum of the exact sums of its rows."""
    wide = values.double()
    if values.numel() <= MAX_SUM:
        return Sum(numbers(wide.flatten()))
    return Sum([carried(Sum(numbers(row))) for row in wide.flatten(0, -2)])


def _norm_steps(b: Builder, norm: nn.GroupNorm, conv: Tensor, y: Number, place: Place, normed: Tensor) -> Number:
    """Add mean and variance of the channel's group, and the normalized value."""
    channel, row, column = place
    size = norm.num_channels // norm.num_groups
    group = conv[channel // size * size :][:size].double()
    n = exact(group.numel())
    b.note(message("explain.convolution.group", channels=str(size)))
    mean = b.calculate(message("explain.labels.mean"), "mu = sum_i x_i / n", _sum(group) / n)
    variance = b.calculate(message("explain.labels.variance"), "sigma^2 = sum_i (x_i - mu)^2 / n", _squares(group, mean) / n)
    normalized = b.calculate("x_hat", "(x - mu) / sqrt(sigma^2 + eps)", (y - mean) / sqrt(variance + exact(norm.eps)))
    out = number(norm.weight[channel]) * normalized + number(norm.bias[channel])
    label = message("explain.labels.norm", channel=str(channel), row=str(row), column=str(column))
    return b.calculate(label, "gamma x_hat + beta", out, normed[channel, row, column])


def _squares(group: Tensor, mean: Number) -> Sum:
    """Return the sum of the squared differences from the mean; of many values, the sum of the exact sums of their rows."""
    if group.numel() <= MAX_SUM:
        return Sum([Power(each - mean, 2) for each in numbers(group.flatten())])
    return Sum([carried(Sum([Power(each - mean, 2) for each in numbers(row)])) for row in group.flatten(0, -2)])


def _attention_steps(b: Builder, module: ChannelAttention, x: Tensor, value: Number, place: Place) -> Number:
    """Add the weight of the channel, and of the position, if the block has channel attention; return the weighted value."""
    if type(module) is ChannelAttention:
        return value
    if not isinstance(module, SqueezeExcitation):
        b.note(message("explain.convolution.plugin", name=type(module).__name__))
        return number(module(x[None])[0][place])
    channel, row, column = place
    label = f"{channel} ({row}, {column})"
    means = module.channel_scores(x.mean((1, 2))[None])[0]
    logit = _excitation(b, module, x.mean((1, 2)), channel, "means", _sum(x[channel]) / exact(x[channel].numel()), means)
    if isinstance(module, Cbam):
        maxima = module.channel_scores(x.amax((1, 2))[None])[0]
        highest = Maximum(numbers(x[channel].flatten()))
        summed = logit + _excitation(b, module, x.amax((1, 2)), channel, "maxima", highest, maxima)
        logit = b.calculate(
            message("explain.labels.logit", channel=str(channel)), message("explain.convolution.both"), summed, (means + maxima)[channel]
        )
    scale = b.calculate(f"s_{channel}", message("explain.convolution.channel_weight"), sigmoid(logit))
    weighted = b.calculate(f"x' {label}", "x' = s x", scale * value)
    if not isinstance(module, Cbam):
        return weighted
    y = x * (means + maxima).sigmoid()[:, None, None]
    return _spatial_steps(b, module, y, weighted, place)


def _excitation(b: Builder, module: SqueezeExcitation, pooled: Tensor, channel: int, what: str, own: Expression, traced: Tensor) -> Number:
    """Add the logit of a channel's weight from one pooled value per channel: W_2 relu(W_1 z + b_1) + b_2."""
    b.note(message(f"explain.convolution.reads.{what}"))
    z = numbers(pooled)
    z[channel] = b.calculate(f"z_{channel}", message(f"explain.convolution.pooled.{what}"), own, pooled[channel])
    weight, bias = linear_weight(module.squeeze)
    assert bias is not None
    pre = [dot(z, numbers(row)) + number(offset) for row, offset in zip(weight, bias, strict=True)]
    hidden = [carried(relu(carried(each))) for each in pre]
    u = b.at(len(hidden))
    hidden[u] = b.calculate(f"hidden[{u}]", "max(0, z W_1 + b)", relu(pre[u]))
    row, offset = (x[channel] for x in linear_weight(module.excite) if x is not None)
    label = message("explain.labels.logit", channel=str(channel))
    return b.calculate(label, "hidden W_2 + b", dot(hidden, numbers(row)) + number(offset), traced[channel])


def _spatial_steps(b: Builder, module: Cbam, y: Tensor, value: Number, place: Place) -> Number:
    """Add the weight of the position: the sigmoid of a convolution over the means and maxima of the channels."""
    channel, row, column = place
    pair, side = torch.stack([y.mean(0), y.amax(0)]), module.spatial.kernel_size[0] // 2
    rows, columns = (range(max(at - side, 0), min(at + side + 1, size)) for at, size in zip((row, column), y.shape[1:], strict=True))
    products = [
        Product((number(pair[c, r, k]), number(module.spatial.weight[0, c, r - row + side, k - column + side])))
        for c in range(2)
        for r in rows
        for k in columns
    ]
    b.note(message("explain.convolution.spatial"))
    label, named = f"({row}, {column})", message("explain.labels.logit_at", row=str(row), column=str(column))
    traced = module.spatial(pair[None])[0, 0, row, column]
    logit = b.calculate(named, message("explain.convolution.spatial_sum"), Sum(products), traced)
    scale = b.calculate(f"s {label}", message("explain.convolution.position_weight"), sigmoid(logit))
    return b.calculate(f"x'' {channel} {label}", "x'' = s x'", scale * value)
