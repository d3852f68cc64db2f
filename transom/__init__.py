"""transom: train Transformers on your own data and use them.

import transom

run = transom.train("phrasebook", out="runs/phrasebook", minutes=5)
translator = run.load()  # or transom.load("runs/phrasebook")
translator.translate(["hello world"], beam_size=5)
translator.align("hello world", "hola mundo")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transom.errors import TransomError as TransomError
    from transom.models.build import build as build
    from transom.tasks.load import load as load
    from transom.tasks.train import train as train

__all__ = ["TransomError", "build", "load", "train"]
__version__ = "0.1.0.dev0"

_HOMES = {
    "TransomError": "transom.errors",
    "build": "transom.models.build",
    "load": "transom.tasks.load",
    "train": "transom.tasks.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import transom`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'transom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__version__"])
