"""The phrasebook's splits, with whole word combinations held out of training."""

from collections.abc import Iterator

from transom.config.component_registry import implements
from transom.config.data import PhrasebookConfig
from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits
from transom.data.synthetic.collect import SplitName, collect_splits, split_by_hash
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.lexicon import lexicon
from transom.data.synthetic.phrasebook.phrases import Phrase
from transom.data.synthetic.phrasebook.sentences import FRAMES

MAX_WORDS = 10
"""Maximum number of words per sentence on either side."""

HELLO = Phrase("hello world", "hola mundo", ("hello world",))
"""The first test pair; its word combination never occurs in training."""

_TEST_FRACTION = 0.10
_VALID_FRACTION = 0.05


class CombinationSplitter:
    """Assigns each word combination to one split by its hash."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._parts: dict[str, SplitName] = {}

    def split(self, combination: str) -> SplitName:
        """Return the split of a combination such as "red house"."""
        if combination not in self._parts:
            part = split_by_hash(f"{self._seed} {combination}", _TEST_FRACTION, _VALID_FRACTION)
            self._parts[combination] = "test" if combination in HELLO.combinations else part
        return self._parts[combination]

    def split_of(self, phrase: Phrase) -> SplitName | None:
        """Return the split of a sentence: test or valid if it contains one of their combinations, None if of both, otherwise train."""
        parts = {self.split(combination) for combination in phrase.combinations}
        if "test" in parts:
            return None if "valid" in parts else "test"
        return "valid" if "valid" in parts else "train"


def sample_sentences(seed: int) -> Iterator[Phrase]:
    """Yield random sentences endlessly, with the word combinations in each."""
    draw, words = RandomChoices(seed), lexicon()
    while True:
        phrase = draw.choice(FRAMES)(draw, words)
        if max(phrase.english.count(" "), phrase.spanish.count(" ")) < MAX_WORDS:
            yield phrase


@implements(PhrasebookConfig)
def generate_phrasebook(config: PhrasebookConfig) -> Splits[Pairs]:
    """Generate English-Spanish pairs for training, validation and test.

    Every test pair contains a combination (adjective and noun, subject and verb, or greeting and person) that occurs in no training or
    validation pair, in any form or position; validation pairs likewise, with combinations of their own. Each single word occurs in
    training. An English sentence has one translation.

    Args:
        config: sizes and seed, which alone determine the result.

    Returns:
        The splits; "hello world" is the first test pair.

    Raises:
        ConfigError: the grammar does not yield enough pairs.
    """
    splitter = CombinationSplitter(config.seed)

    def stream() -> Iterator[tuple[SplitName | None, str, str]]:
        yield splitter.split_of(HELLO), HELLO.english, HELLO.spanish
        for phrase in sample_sentences(config.seed):
            yield splitter.split_of(phrase), phrase.english, phrase.spanish

    return collect_splits(stream(), config.n_train, config.n_valid, config.n_test, "phrasebook")
