"""Generated tasks of copying, reversing or sorting letters, which a correct encoder-decoder model learns perfectly."""

from collections.abc import Callable, Iterator
from random import Random
from string import ascii_lowercase

from transom.config.component_registry import implements
from transom.config.data import SequenceTaskConfig, SequenceTaskKind
from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits
from transom.data.synthetic.collect import SplitName, collect_splits, split_by_hash
from transom.errors import ConfigError

_RULES: dict[SequenceTaskKind, Callable[[list[str]], list[str]]] = {"copy": list, "reverse": lambda symbols: symbols[::-1], "sort": sorted}
_TEST_FRACTION = 0.2
_VALID_FRACTION = 0.1


@implements(SequenceTaskConfig)
def generate_sequences(config: SequenceTaskConfig) -> Splits[Pairs]:
    """Generate pairs of a sequence of letters and the copied, reversed or sorted sequence.

    For example, the kind "sort" pairs ``c a b`` with ``a b c``. The length of a sequence and then its letters are sampled uniformly. Each
    sequence is assigned to a split by a hash, so that every split has short and long sequences and no sequence occurs in two splits.

    Args:
        config: kind of task, sizes, length limits, number of letters, and seed. They fully determine the result.

    Returns:
        The splits, without duplicates.

    Raises:
        ConfigError: the minimum length exceeds the maximum length, or there are too few different sequences.
    """
    if config.min_length > config.max_length:
        raise ConfigError(
            f"data.generate: expected min_length <= max_length, found {config.min_length} > {config.max_length}; change one of them"
        )
    uniform = Random(config.seed).random
    rule = _RULES[config.kind]

    def stream() -> Iterator[tuple[SplitName, str, str]]:
        while True:
            length = config.min_length + int(uniform() * (config.max_length - config.min_length + 1))
            symbols = [ascii_lowercase[int(uniform() * config.n_symbols)] for _ in range(length)]
            source = " ".join(symbols)
            yield split_by_hash(f"{config.seed} {source}", _TEST_FRACTION, _VALID_FRACTION), source, " ".join(rule(symbols))

    return collect_splits(stream(), config.n_train, config.n_valid, config.n_test, config.kind, "raise max_length or n_symbols")
