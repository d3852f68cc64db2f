"""transom: a Transformer in plain sight.

import transom

transom.train("phrasebook", out="runs/phrasebook")
transom.load("runs/phrasebook").translate(["hello world"], beam_size=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transom.models.build import build as build
    from transom.tasks.load import load as load
    from transom.tasks.train import train as train

__all__ = ["build", "load", "train"]
__version__ = "0.1.0.dev0"

_HOMES = {"build": "transom.models.build", "load": "transom.tasks.load", "train": "transom.tasks.train"}


def __getattr__(name: str) -> Any:
    """Import what is asked for only now, so that ``import transom`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'transom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
