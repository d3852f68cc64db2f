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
"""Most words of a sentence on either side."""

HELLO = Phrase("hello world", "hola mundo", ("hello world",))
"""The sentence that the article translates: always the first test pair, its combination never in training."""

_TEST_SHARE = 0.10
_VALID_SHARE = 0.05


class Holdout:
    """Decides for each word combination, by its hash, in which part alone it may occur."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._parts: dict[str, Part] = {}

    def part(self, combination: str) -> Part:
        """Give the part of a combination, such as "red house"."""
        if combination not in self._parts:
            part = part_by_hash(f"{self._seed} {combination}", _TEST_SHARE, _VALID_SHARE)
            self._parts[combination] = "test" if combination in HELLO.combinations else part
        return self._parts[combination]

    def part_of(self, phrase: Phrase) -> Part | None:
        """Give the part of a sentence: test or valid if it holds a combination of theirs, none if of both."""
        parts = {self.part(combination) for combination in phrase.combinations}
        if "test" in parts:
            return None if "valid" in parts else "test"
        return "valid" if "valid" in parts else "train"


def sentences(seed: int) -> Iterator[Phrase]:
    """Draw sentences without end, with the combinations in each."""
    draw, words = Draw(seed), lexicon()
    while True:
        phrase = draw.pick(FRAMES)(draw, words)
        if max(phrase.english.count(" "), phrase.spanish.count(" ")) < MAX_WORDS:
            yield phrase


@implements(Phrasebook)
def generate(config: Phrasebook) -> Splits[Pairs]:
    """Generate English-Spanish pairs for training, validation and test.

    Every test pair holds an adjective and noun, a subject and verb, or a greeting and person that no training or validation pair combines,
    in any form or place; every validation pair likewise, with combinations of its own. Each word by itself is in training.
    An English sentence has one translation.

    Args:
        config: sizes and seed; nothing else decides what comes out.

    Returns:
        The splits; "hello world" is the first test pair.

    Raises:
        ConfigError: the grammar does not yield so many pairs.
    """
    holdout = Holdout(config.seed)

    def stream() -> Iterator[tuple[Part | None, str, str]]:
        yield holdout.part_of(HELLO), HELLO.english, HELLO.spanish
        for phrase in sentences(config.seed):
            yield holdout.part_of(phrase), phrase.english, phrase.spanish

    return collect(stream(), config.n_train, config.n_valid, config.n_test, "phrasebook")
