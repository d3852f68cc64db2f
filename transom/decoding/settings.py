"""Options of a call, laid over the recipe's settings."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from transom.config.brick import Schema
from transom.config.explaining import check
from transom.config.names import nearest
from transom.errors import ConfigError

Settings = TypeVar("Settings", bound=Schema)


def settled(settings: Settings, options: Mapping[str, object], known: Collection[str]) -> Settings:
    """Lay options over settings and check them; an option that is None changes nothing.

    Args:
        settings: the recipe's.
        options: of the call.
        known: the names that an option may have, those that are no setting too.

    Raises:
        ConfigError: an option is unknown, or its value does not fit.
    """
    for name in options:
        if name not in known:
            raise ConfigError(f"expected an option, found {name!r}; {nearest(name, list(known))}")
    changes = {name: value for name, value in options.items() if name in type(settings).model_fields and value is not None}
    return check(type(settings), {**settings.model_dump(), **changes}, lambda path: "decoding")
