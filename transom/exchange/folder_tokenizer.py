"""Load the tokenizers of a foreign folder."""

from typing import Any

from transom.exchange.family import Family
from transom.exchange.foreign_folder import ForeignFolder


def load_folder_tokenizers(folder: ForeignFolder, family: Family) -> Any:
    raise NotImplementedError
