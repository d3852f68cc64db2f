"""The phrasebook's splits, with whole word combinations held out of training."""

from collections.abc import Iterator

from transom.config.components import implements
from transom.config.data import Phrasebook
from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits
from transom.data.synthetic.collect import Part, collect, part_by_hash
from transom.data.synthetic.phrasebook.draw import Draw
from transom.data.synthetic.phrasebook.lexicon import lexicon
from transom.data.synthetic.phrasebook.phrases import Phrase
from transom.data.synthetic.phrasebook.sentences import FRAMES

MAX_WORDS = 10
"""Maximum number of words per sentence on either side."""

HELLO = Phrase("hello world", "hola mundo", ("hello world",))
"""The first test pair; its word combination never occurs in training."""

_TEST_SHARE = 0.10
_VALID_SHARE = 0.05


class Holdout:
    """Assigns each word combination to one split by its hash."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._parts: dict[str, Part] = {}

    def part(self, combination: str) -> Part:
        """Return the split of a combination such as "red house"."""
        if combination not in self._parts:
            part = part_by_hash(f"{self._seed} {combination}", _TEST_SHARE, _VALID_SHARE)
            self._parts[combination] = "test" if combination in HELLO.combinations else part
        return self._parts[combination]

    def part_of(self, phrase: Phrase) -> Part | None:
        """Return the split of a sentence: test or valid if it contains one of their combinations, None if of both, otherwise train."""
        parts = {self.part(combination) for combination in phrase.combinations}
        if "test" in parts:
            return None if "valid" in parts else "test"
        return "valid" if "valid" in parts else "train"


def sentences(seed: int) -> Iterator[Phrase]:
    """Yield random sentences endlessly, with the word combinations in each."""
    draw, words = Draw(seed), lexicon()
    while True:
        phrase = draw.pick(FRAMES)(draw, words)
        if max(phrase.english.count(" "), phrase.spanish.count(" ")) < MAX_WORDS:
            yield phrase


@implements(Phrasebook)
def generate(config: Phrasebook) -> Splits[Pairs]:
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
    holdout = Holdout(config.seed)

    def stream() -> Iterator[tuple[Part | None, str, str]]:
        yield holdout.part_of(HELLO), HELLO.english, HELLO.spanish
        for phrase in sentences(config.seed):
            yield holdout.part_of(phrase), phrase.english, phrase.spanish

    return collect(stream(), config.n_train, config.n_valid, config.n_test, "phrasebook")
