"""Generation of the phrasebook's splits, in which word combinations of test pairs never occur in training."""

from collections.abc import Iterator

from transom.config.component_registry import implements
from transom.config.data import PhrasebookConfig
from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits
from transom.data.synthetic.collect import SplitName, collect_splits, split_by_hash
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.lexicon import lexicon
from transom.data.synthetic.phrasebook.linked_text import link
from transom.data.synthetic.phrasebook.phrases import Phrase
from transom.data.synthetic.phrasebook.sentences import FRAMES

MAX_WORDS = 10
"""Maximum number of words in a sentence, in either language."""

HELLO = Phrase(*link("hello world", "hola mundo"), ("hello world",))
"""The first test pair, whose word combination never occurs in training."""

_TEST_FRACTION = 0.10
_VALID_FRACTION = 0.05


class CombinationSplitter:
    """Assignment of each word combination to a split by a hash of the combination."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._parts: dict[str, SplitName] = {}

    def split(self, combination: str) -> SplitName:
        """Return the split of a word combination such as "red house"."""
        if combination not in self._parts:
            part = split_by_hash(f"{self._seed} {combination}", _TEST_FRACTION, _VALID_FRACTION)
            self._parts[combination] = "test" if combination in HELLO.combinations else part
        return self._parts[combination]

    def split_of(self, phrase: Phrase) -> SplitName | None:
        """Return the split of a sentence.

        A sentence belongs to "test" or "valid" if it contains a word combination of this split, and otherwise to "train". The result is
        None if the sentence contains combinations of both "test" and "valid".
        """
        parts = {self.split(combination) for combination in phrase.combinations}
        if "test" in parts:
            return None if "valid" in parts else "test"
        return "valid" if "valid" in parts else "train"


def sample_sentences(seed: int) -> Iterator[Phrase]:
    """Yield random sentences of at most ``MAX_WORDS`` words endlessly, with the word combinations of each sentence."""
    draw, words = RandomChoices(seed), lexicon()
    while True:
        phrase = draw.choice(FRAMES)(draw, words)
        if max(phrase.english.count(" "), phrase.spanish.count(" ")) < MAX_WORDS:
            yield phrase


@implements(PhrasebookConfig)
def generate_phrasebook(config: PhrasebookConfig) -> Splits[Pairs]:
    """Generate English-Spanish sentence pairs for training, validation and test.

    A word combination is an adjective with its noun, a subject with its verb, or a greeting with the person who is greeted. Every test pair
    contains a word combination that occurs in no training or validation pair, whatever the form or position of the words. Every validation
    pair contains a word combination that occurs in no training or test pair. Each English sentence has one translation.

    Args:
        config: sizes and seed, which fully determine the result.

    Returns:
        The splits. The first test pair is "hello world".

    Raises:
        ConfigError: the grammar does not yield enough pairs.
    """
    stream = ((part, str(phrase.english), str(phrase.spanish)) for part, phrase in _phrases(config))
    return collect_splits(stream, config.n_train, config.n_valid, config.n_test, "phrasebook")


def generate_linked_phrasebook(config: PhrasebookConfig) -> Splits[Pairs]:
    """Generate the pairs of ``generate_phrasebook`` as ``LinkedText``: ``word_links(source, target)`` returns the links of their words."""
    stream = ((part, phrase.english, phrase.spanish) for part, phrase in _phrases(config))
    return collect_splits(stream, config.n_train, config.n_valid, config.n_test, "phrasebook")


def _phrases(config: PhrasebookConfig) -> Iterator[tuple[SplitName | None, Phrase]]:
    """Yield "hello world" and random sentences endlessly, each with its split."""
    splitter = CombinationSplitter(config.seed)
    yield splitter.split_of(HELLO), HELLO
    for phrase in sample_sentences(config.seed):
        yield splitter.split_of(phrase), phrase
