"""Word links that the phrasebook's grammar records, while its sentences stay the same."""

from hashlib import sha256
from itertools import islice

from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.clauses import conjugate, conjugate_be, conjugate_modal, question, statement
from transom.data.synthetic.phrasebook.generate import generate_linked_phrasebook, generate_phrasebook, sample_sentences
from transom.data.synthetic.phrasebook.lexicon import lexicon
from transom.data.synthetic.phrasebook.linked_text import join_words, link, marks_of, word_links
from transom.data.synthetic.phrasebook.phrases import NOTHING, NounPhrase, Phrase
from transom.data.synthetic.phrasebook.spanish import contract

WORDS = lexicon()
CONFIG = PhrasebookConfig(n_train=300, n_valid=10, n_test=10)


def shown(english: str, spanish: str) -> str:
    """Write sure links with = and possible ones with ~."""
    first, second = english.split(), spanish.split()
    return " ".join(f"{first[each.source]}{'=' if each.sure else '~'}{second[each.target]}" for each in word_links(english, spanish))


def test_sentences_are_the_same_with_and_without_links() -> None:
    """The digest is that of the sentences before the grammar recorded links; the second is that of the links."""
    plain, linked = generate_phrasebook(CONFIG), generate_linked_phrasebook(CONFIG)
    sentences, links = sha256(), sha256()
    for name, part in plain.parts.items():
        assert (part.source, part.target) == (linked.parts[name].source, linked.parts[name].target)
        assert {type(text) for text in part.source + part.target} == {str}
        for source, target in zip(linked.parts[name].source, linked.parts[name].target, strict=True):
            sentences.update(f"{source}\t{target}\n".encode())
            links.update(f"{word_links(source, target)}\n".encode())
    assert sentences.hexdigest()[:16] == "fb83b59251dcb368"
    assert links.hexdigest()[:16] == "70f8ee9ead114830"


def the(lemma: str) -> NounPhrase:
    (noun,) = (each for nouns in WORDS.nouns.values() for each in nouns if each.lemma == lemma)
    (the_noun, article), (first, second) = link("the", "la" if noun.feminine else "el"), link(noun.english[0], noun.spanish[0])
    return NounPhrase(join_words(the_noun, first), join_words(article, second), 1, noun.feminine, (noun,))


def test_links_are_those_of_a_reader() -> None:
    """One clause per rule: an auxiliary, a dropped pronoun, a fused negation, a modal verb, a contraction, a set phrase."""
    swim, we = WORDS.verbs["swim"], NounPhrase(*link("we", "nosotros"), 2, False, (), pronoun=True)
    can, want = ((word, forms) for word, forms in WORDS.modals if word in ("can", "want to"))
    cases = (
        (
            question(the("cat"), conjugate(swim, "future", 1), NOTHING, word=link("where", "dónde")),
            "where=¿dónde will~nadará the=el cat=gato? swim?=nadará",
        ),
        (statement(we, conjugate(swim, "present", 2), NOTHING), "we~nadamos swim=nadamos"),
        (statement(the("cat"), conjugate_modal(can, swim, 1), NOTHING, negative=True), "the=el cat=gato cannot=no cannot=puede swim=nadar"),
        (question(the("cat"), conjugate_modal(want, swim, 1), NOTHING), "does~¿quiere the=el cat=gato want=¿quiere to~nadar? swim?=nadar?"),
        (
            statement(
                the("cat"), conjugate_be("estar", "future", 1), Phrase(*link("last night", "anoche")), adverb=link("always", "siempre")
            ),
            "the=el cat=gato will~estará always=siempre be=estará last~anoche night~anoche",
        ),
    )
    for phrase, expected in cases:
        assert shown(phrase.english, phrase.spanish) == expected


def test_every_word_has_marks_and_all_but_the_article_of_a_date_are_linked() -> None:
    for phrase in islice(sample_sentences(7), 400):
        links = word_links(phrase.english, phrase.spanish)
        english, spanish = phrase.english.split(), phrase.spanish.split()
        assert (len(marks_of(phrase.english)), len(marks_of(phrase.spanish))) == (len(english), len(spanish)), phrase
        left = [word for i, word in enumerate(english) if all(each.source != i for each in links)]
        assert left in ([], ["the"]), phrase
        assert {each.target for each in links} == set(range(len(spanish))), phrase


def test_phrases_of_equal_length_are_linked_word_by_word_and_others_possibly() -> None:
    assert shown(*link("good night", "buenas noches")) == "good=buenas night=noches"
    assert shown(*link("last night", "anoche")) == "last~anoche night~anoche"
    to, a = link("to", "a")
    the, el = link("the", "el")
    sea, mar = link("sea", "mar")
    assert shown(join_words(to, the, sea), contract(a, join_words(el, mar))) == "to=al the=al sea=mar"
    assert word_links("plain text", "texto") == ()
