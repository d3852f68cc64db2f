"""Word links that the phrasebook's grammar records, while its sentences stay the same."""

from hashlib import sha256
from itertools import islice

from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.generate import generate_linked_phrasebook, generate_phrasebook, sample_sentences
from transom.data.synthetic.phrasebook.linked_text import LinkedText, link, marks_of, word_links
from transom.data.synthetic.phrasebook.spanish import contract

CONFIG = PhrasebookConfig(n_train=3000, n_valid=20, n_test=40)

LINKS = {
    "where will Luis be?": "where=¿dónde will~estará Luis=Luis? be?=estará",
    "we must dance": "we~debemos must=debemos dance=bailar",
    "that cat cannot jump near the street": ("that=ese cat=gato cannot=no cannot=puede jump=saltar near~cerca near~de the=la street=calle"),
    "Irene returned to the airport": "Irene=Irene returned=volvió to=al the=al airport=aeropuerto",
    "he likes doors": "he~a he=él he~le likes=gustan doors~las doors=puertas",
    "we carried the French belt": "we~llevamos carried=llevamos the=el French=francés belt=cinturón",
}


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
    assert sentences.hexdigest()[:16] == "9d5aeb30721bc04d"
    assert links.hexdigest()[:16] == "cbd9ceb30290ec37"


def test_links_are_those_of_a_reader() -> None:
    found = {
        phrase.english: shown(phrase.english, phrase.spanish) for phrase in islice(sample_sentences(1), 60000) if phrase.english in LINKS
    }
    assert found == LINKS


def test_every_word_has_marks_and_all_but_the_article_of_a_date_are_linked() -> None:
    for phrase in islice(sample_sentences(7), 3000):
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
    whole = LinkedText(f"{to} {the} {sea}", [*marks_of(to), *marks_of(the), *marks_of(sea)])
    assert shown(whole, contract(a, LinkedText(f"{el} {mar}", [*marks_of(el), *marks_of(mar)]))) == "to=al the=al sea=mar"
    assert word_links("plain text", "texto") == ()
