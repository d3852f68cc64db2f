"""The phrasebook's grammar: word forms, and clauses composed of given words."""

import re
from itertools import islice

import pytest

from transom.data.synthetic.phrasebook import english, numbers, spanish
from transom.data.synthetic.phrasebook.clauses import conjugate, conjugate_be, conjugate_modal, question, statement
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.generate import sample_sentences
from transom.data.synthetic.phrasebook.lexicon import Noun, lexicon
from transom.data.synthetic.phrasebook.phrases import NOTHING, NounPhrase, Phrase, coordinate, generic_phrase, noun_phrase, quantity
from transom.data.synthetic.phrasebook.sentences import FRAMES

WORDS = lexicon()
NOUNS = {noun.lemma: noun for group in (*WORDS.nouns.values(), WORDS.names) for noun in group}
ADJECTIVES = {adjective.lemma: adjective for group in WORDS.adjectives.values() for adjective in group}


def the(lemma: str, *, plural: bool = False) -> NounPhrase:
    noun = NOUNS[lemma]
    article = (("el", "los"), ("la", "las"))[noun.feminine and not (noun.takes_el and not plural)][plural]
    return NounPhrase(f"the {noun.english[plural]}", f"{article} {noun.spanish[plural]}", 3 if plural else 1, noun.feminine, (noun,))


def pronoun(word: str) -> NounPhrase:
    translation, person = {word: (es, person) for word, es, person in WORDS.pronouns}[word]
    return NounPhrase(word, translation, person, word == "she", (), pronoun=True)


def phrase(pair: Phrase) -> tuple[str, str]:
    return pair.english, pair.spanish


@pytest.mark.parametrize(
    ("lemma", "present", "past", "future"),
    [
        ("sing", "canto canta cantamos cantan", "canté cantó cantamos cantaron", "cantaré cantará cantaremos cantarán"),
        ("eat", "como come comemos comen", "comí comió comimos comieron", "comeré comerá comeremos comerán"),
        ("open", "abro abre abrimos abren", "abrí abrió abrimos abrieron", "abriré abrirá abriremos abrirán"),
        ("sleep", "duermo duerme dormimos duermen", "dormí durmió dormimos durmieron", "dormiré dormirá dormiremos dormirán"),
        ("follow", "sigo sigue seguimos siguen", "seguí siguió seguimos siguieron", "seguiré seguirá seguiremos seguirán"),
        ("close", "cierro cierra cerramos cierran", "cerré cerró cerramos cerraron", "cerraré cerrará cerraremos cerrarán"),
        ("hug", "abrazo abraza abrazamos abrazan", "abracé abrazó abrazamos abrazaron", "abrazaré abrazará abrazaremos abrazarán"),
        ("go", "voy va vamos van", "fui fue fuimos fueron", "iré irá iremos irán"),
        ("have", "tengo tiene tenemos tienen", "tenía tenía teníamos tenían", "tendré tendrá tendremos tendrán"),
        ("want", "quiero quiere queremos quieren", "quería quería queríamos querían", "querré querrá querremos querrán"),
        ("leave", "salgo sale salimos salen", "salí salió salimos salieron", "saldré saldrá saldremos saldrán"),
        ("bring", "traigo trae traemos traen", "traje trajo trajimos trajeron", "traeré traerá traeremos traerán"),
        ("see", "veo ve vemos ven", "vi vio vimos vieron", "veré verá veremos verán"),
    ],
)
def test_spanish_verbs_are_conjugated(lemma: str, present: str, past: str, future: str) -> None:
    forms = WORDS.verbs[lemma].forms
    assert [" ".join(forms[tense]) for tense in ("present", "past", "future")] == [present, past, future]


def test_plurals_and_adjectives_are_formed() -> None:
    assert [NOUNS[lemma].spanish[1] for lemma in ("pencil", "train", "king", "umbrella", "exam", "bus", "city", "coffee", "lesson")] == [
        "lápices", "trenes", "reyes", "paraguas", "exámenes", "autobuses", "ciudades", "cafés", "lecciones",
    ]  # fmt: skip
    assert [NOUNS[lemma].english[1] for lemma in ("mouse", "scarf", "city", "boy", "box", "church", "tomato")] == [
        "mice", "scarves", "cities", "boys", "boxes", "churches", "tomatoes",
    ]  # fmt: skip
    assert ADJECTIVES["French"].forms == ("francés", "francesa", "franceses", "francesas")
    assert ADJECTIVES["young"].forms == ("joven", "joven", "jóvenes", "jóvenes")
    assert ADJECTIVES["talkative"].forms == ("hablador", "habladora", "habladores", "habladoras")
    assert ADJECTIVES["gray"].forms == ("gris", "gris", "grises", "grises")


def test_numbers_are_spelled() -> None:
    assert [numbers.english(n) for n in (0, 13, 20, 21, 99, 900)] == [
        "zero",
        "thirteen",
        "twenty",
        "twenty-one",
        "ninety-nine",
        "nine hundred",
    ]
    assert [numbers.spanish(n) for n in (0, 1, 16, 22, 31, 99, 100, 500)] == [
        "cero", "uno", "dieciséis", "veintidós", "treinta y uno", "noventa y nueve", "cien", "quinientos",
    ]  # fmt: skip
    assert [numbers.spanish(n, feminine=True) for n in (1, 11, 21, 41, 100, 300)] == [
        "una", "once", "veintiuna", "cuarenta y una", "cien", "trescientas",
    ]  # fmt: skip
    assert [numbers.spanish(n, feminine=False) for n in (1, 11, 21, 41, 300)] == ["un", "once", "veintiún", "cuarenta y un", "trescientos"]
    assert len({numbers.spanish(n) for n in range(100)}) == len({numbers.english_ordinal(n) for n in range(1, 100)}) + 1 == 100


def test_statements_negations_and_questions() -> None:
    sleep, dog = WORDS.verbs["sleep"], the("dog")
    assert phrase(statement(dog, conjugate(sleep, "present", 1), NOTHING)) == ("the dog sleeps", "el perro duerme")
    assert phrase(statement(dog, conjugate(sleep, "past", 1), NOTHING, negative=True)) == ("the dog did not sleep", "el perro no durmió")
    assert phrase(question(dog, conjugate(sleep, "future", 1), NOTHING)) == ("will the dog sleep?", "¿dormirá el perro?")
    where = question(dog, conjugate(sleep, "present", 1), NOTHING, word=("where", "dónde"))
    assert phrase(where) == ("where does the dog sleep?", "¿dónde duerme el perro?")
    assert where.combinations == ("sleep dog",)
    assert phrase(statement(dog, conjugate(sleep, "future", 1), NOTHING, adverb=("always", "siempre"))) == (
        "the dog will always sleep",
        "el perro siempre dormirá",
    )


def test_be_is_ser_or_estar_and_its_adjective_comes_before_the_subject_in_a_question() -> None:
    houses, red = the("house", plural=True), Phrase("red", "rojas", ("red house",))
    assert phrase(statement(houses, conjugate_be("ser", "past", 3), red, negative=True)) == (
        "the houses were not red",
        "las casas no eran rojas",
    )
    assert phrase(question(houses, conjugate_be("ser", "present", 3), red, rest_first=True)) == (
        "are the houses red?",
        "¿son rojas las casas?",
    )
    tired = Phrase("tired", "cansado")
    assert phrase(question(pronoun("he"), conjugate_be("estar", "future", 1), tired, rest_first=True)) == (
        "will he be tired?",
        "¿estará cansado él?",
    )


def test_modal_verbs_govern_the_infinitive() -> None:
    modals = {word: (word, forms) for word, forms in WORDS.modals}
    swim, cat = WORDS.verbs["swim"], the("cat")
    assert phrase(statement(cat, conjugate_modal(modals["can"], swim, 1), NOTHING, negative=True)) == (
        "the cat cannot swim",
        "el gato no puede nadar",
    )
    assert phrase(question(cat, conjugate_modal(modals["must"], swim, 1), NOTHING)) == ("must the cat swim?", "¿debe el gato nadar?")
    wants = conjugate_modal(modals["want to"], swim, 1)
    assert phrase(statement(cat, wants, NOTHING)) == ("the cat wants to swim", "el gato quiere nadar")
    assert phrase(question(cat, wants, NOTHING)) == ("does the cat want to swim?", "¿quiere el gato nadar?")
    assert statement(cat, wants, NOTHING).combinations == ("swim cat", "want cat")
    assert phrase(statement(pronoun("she"), conjugate_modal(modals["can"], swim, 1), NOTHING)) == ("she can swim", "ella puede nadar")


def test_a_pronoun_is_left_out_where_the_verb_tells_the_person() -> None:
    want = WORDS.verbs["want"]
    said = {
        (word, tense): statement(pronoun(word), conjugate(want, tense, pronoun(word).person), NOTHING).spanish
        for word in ("I", "he", "we", "they", "you all")
        for tense in ("present", "past")
    }
    assert said["I", "present"] == "quiero"
    assert said["I", "past"] == "yo quería"
    assert said["he", "past"] == "él quería"
    assert (said["we", "present"], said["we", "past"]) == ("queremos", "queríamos")
    assert (said["they", "present"], said["you all", "present"]) == ("ellos quieren", "ustedes quieren")


def test_phrases_join_and_contract() -> None:
    pair = coordinate(the("mother"), the("father"))
    assert (pair.english, pair.spanish, pair.person, pair.feminine) == ("the mother and the father", "la madre y el padre", 3, False)
    assert coordinate(the("mother"), the("daughter")).feminine
    assert (spanish.conjunction("Ana"), spanish.conjunction("Irene")) == ("y", "e")
    assert spanish.contract("delante de", "el agua") == "delante del agua"
    assert spanish.contract("a", "ella") == "a ella"
    assert english.with_article("hungry dog") == "a hungry dog"


def test_each_kind_of_sentence_is_drawn() -> None:
    draw = RandomChoices(1)
    for frame in dict.fromkeys(FRAMES):
        drawn = [frame(draw, WORDS) for _ in range(20)]
        assert len({found.english for found in drawn}) > 10, frame
        assert all(found.english and found.spanish for found in drawn)


def test_draws_are_even_and_bounded() -> None:
    draw = RandomChoices(3)
    drawn = [draw.randint(2, 4) for _ in range(3000)]
    assert {n: round(drawn.count(n), -2) for n in set(drawn)} == {2: 1000, 3: 1000, 4: 1000}
    assert 0.22 < sum(draw.chance(0.25) for _ in range(2000)) / 2000 < 0.28
    amounts = [quantity(draw) for _ in range(2000)]
    assert min(amounts) == 2
    assert {n for n in amounts if n > 99} == set(range(100, 1000, 100))


def test_noun_phrases_agree() -> None:
    """Check gender and number of articles and adjectives against the lexicon, for every noun."""
    draw = RandomChoices(2)
    ending = {"el": "ms", "la": "fs", "los": "mp", "las": "fp", "un": "ms", "una": "fs", "estos": "mp", "estas": "fp"}
    for noun in NOUNS.values():
        if noun.is_name:
            continue
        for _ in range(8):
            drawn = noun_phrase(draw, WORDS, [noun], adjective=1.0)
            article, rest = drawn.spanish.split(" ", 1)
            expected = ("f" if noun.feminine else "m") + ("p" if drawn.plural else "s")
            if article in ending and not (noun.takes_el and not drawn.plural):
                assert ending[article] == expected
            lemma = drawn.combinations[0].removesuffix(f" {noun.lemma}")
            form = ADJECTIVES[lemma].forms[2 * drawn.plural + noun.feminine]
            assert re.search(rf"\b{noun.spanish[drawn.plural]} (muy )?{form}$", rest)
            assert re.search(rf"\b{lemma} {noun.english[drawn.plural]}$", drawn.english)


@pytest.mark.parametrize(
    ("lemma", "expected"), [("water", ("water", "el agua")), ("eagle", ("eagles", "las águilas")), ("lion", ("lions", "los leones"))]
)
def test_a_whole_class_of_things_has_an_article_in_spanish_only(lemma: str, expected: tuple[str, str]) -> None:
    found = generic_phrase(RandomChoices(1), WORDS, [NOUNS[lemma]], adjective=0.0)
    assert (found.english, found.spanish) == expected


def test_feminine_nouns_with_a_stressed_a_take_el_and_un_in_the_singular_only() -> None:
    draw, eagle = RandomChoices(1), NOUNS["eagle"]
    found = {drawn.english: drawn.spanish for drawn in (noun_phrase(draw, WORDS, [eagle], adjective=0.0) for _ in range(300))}
    assert found["the eagle"] == "el águila"
    assert found["an eagle"] == "un águila"
    assert found["this eagle"] == "esta águila"
    assert found["the eagles"] == "las águilas"


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(my|our|his|her|the|this) \w+ likes? (\w+)s$",
        r"^does \w+ \w+ .*\?$",
        r"^there (is|are) ",
        r"^today is \w+, the \w+ of \w+$",
        r"^how many ",
        r" years old$",
        r" euros$",
        r"^who ",
    ],
)
def test_the_promised_kinds_of_sentences_occur(pattern: str) -> None:
    assert any(re.search(pattern, found.english) for found in islice(sample_sentences(seed=4), 3000))


def test_every_lemma_has_a_class_that_is_used() -> None:
    kinds = set(WORDS.nouns)
    assert set(WORDS.adjectives) == kinds
    used: set[Noun] = {noun for verb in WORDS.verbs.values() for noun in verb.objects}
    assert {noun.kind for noun in used} == kinds - {"event"}
