"""The colors of pictures can be told apart with any kind of color blindness, simulated by the matrices of Machado et al. 2009."""

from itertools import combinations

import matplotlib
import pytest
import torch
from torch import Tensor

from transom.inspection.plots.picture import CATEGORIES, DIVERGING, SEQUENTIAL

VISION = {
    "trichromacy": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "no colors": [[0.2126, 0.7152, 0.0722]] * 3,
}
"""What is left of linear red, green and blue."""

XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = [0.9505, 1.0, 1.089]


def lab(colors: Tensor, vision: str) -> Tensor:
    """Return L*, a*, b* of sRGB colors, (n, 3), as someone sees them."""
    linear = torch.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    seen = (linear @ torch.tensor(VISION[vision], dtype=torch.float64).T).clamp(0, 1)
    t = seen @ torch.tensor(XYZ, dtype=torch.float64).T / torch.tensor(WHITE, dtype=torch.float64)
    f = torch.where(t > (6 / 29) ** 3, t.clamp(min=1e-12) ** (1 / 3), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def entries(name: str) -> Tensor:
    """Return the 256 colors of a map."""
    return torch.tensor(matplotlib.colormaps[name](torch.linspace(0, 1, 256).numpy())[:, :3].tolist(), dtype=torch.float64)


@pytest.mark.parametrize("vision", VISION)
def test_larger_weights_are_lighter(vision: str) -> None:
    lightness = lab(entries(SEQUENTIAL), vision)[:, 0]
    assert float(lightness.diff().min()) > 0.1
    assert float(lightness[-1] - lightness[0]) > 60


@pytest.mark.parametrize("vision", VISION)
def test_numbers_are_darker_the_further_they_are_from_zero(vision: str) -> None:
    lightness = lab(entries(DIVERGING), vision)[:, 0]
    assert float(lightness[:128:8].diff().min()) > 0.5 and float(lightness[128::8].diff().max()) < -0.5
    assert float(lightness[127:129].min() - lightness[[0, -1]].max()) > 50


@pytest.mark.parametrize("vision", [name for name in VISION if name != "no colors"])
def test_signs_differ_in_color(vision: str) -> None:
    seen = lab(entries(DIVERGING), vision)
    apart = (seen[:128] - seen[128:].flip(0)).norm(dim=-1)  # of -v and v
    assert float(apart[:96].min()) > 20  # from a quarter of the largest number


@pytest.mark.parametrize("vision", [name for name in VISION if name != "no colors"])
def test_categories_differ_in_color(vision: str) -> None:
    colors = torch.tensor([[int(each[i : i + 2], 16) / 255 for i in (1, 3, 5)] for each in CATEGORIES], dtype=torch.float64)
    seen = lab(colors, vision)
    apart = {(a, b): float((seen[a] - seen[b]).norm()) for a, b in combinations(range(len(CATEGORIES)), 2)}
    assert min(apart.values()) > 15, apart


def test_a_rainbow_is_refused() -> None:
    assert float(lab(entries("jet"), "deuteranopia")[:, 0].diff().min()) < -0.5
