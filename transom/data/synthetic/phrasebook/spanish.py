"""Rules for Spanish word forms, such as plurals, agreement, conjugation and contraction.

A verb has four forms per tense, for yo, él, nosotros and ellos. An adjective has four forms, which are the masculine and feminine singular
and the masculine and feminine plural.
"""

from collections.abc import Mapping

from transom.data.synthetic.phrasebook.linked_text import LinkedText, fuse, join_words, words_of

Forms = tuple[str, str, str, str]

_ACCENTED_ENDINGS = {"án": "an", "én": "en", "ín": "in", "ón": "on", "ún": "un", "és": "es", "ás": "as", "ús": "us"}
_PRESENT = {"ar": ("o", "a", "amos", "an"), "er": ("o", "e", "emos", "en"), "ir": ("o", "e", "imos", "en")}
_PRETERITE = {"ar": ("é", "ó", "amos", "aron"), "er": ("í", "ió", "imos", "ieron"), "ir": ("í", "ió", "imos", "ieron")}
_IMPERFECT = {"ar": ("aba", "aba", "ábamos", "aban"), "er": ("ía", "ía", "íamos", "ían"), "ir": ("ía", "ía", "íamos", "ían")}
_FUTURE = ("é", "á", "emos", "án")
_BEFORE_E = {"c": "qu", "g": "gu", "z": "c"}

BE: Mapping[str, Mapping[str, Forms]] = {
    "ser": {
        "present": ("soy", "es", "somos", "son"),
        "past": ("era", "era", "éramos", "eran"),
        "future": ("seré", "será", "seremos", "serán"),
    },
    "estar": {
        "present": ("estoy", "está", "estamos", "están"),
        "past": ("estaba", "estaba", "estábamos", "estaban"),
        "future": ("estaré", "estará", "estaremos", "estarán"),
    },
}
"""Forms of the two verbs that mean "be", by verb and tense. The past tense is the imperfect."""


def plural(word: str) -> str:
    """Form the regular plural of a Spanish noun or adjective.

    >>> plural("casa"), plural("lápiz"), plural("avión"), plural("paraguas"), plural("rey")
    ('casas', 'lápices', 'aviones', 'paraguas', 'reyes')
    """
    if word[-1] in "aeiouáéó":
        return word + "s"
    if word.endswith("z"):
        return word[:-1] + "ces"
    if word[-2:] in _ACCENTED_ENDINGS:
        return word[:-2] + _ACCENTED_ENDINGS[word[-2:]] + "es"
    return word if word.endswith("s") and word[-2:] != "is" else word + "es"


def inflect_adjective(adjective: str) -> Forms:
    """Return the four forms of a Spanish adjective, given its masculine singular.

    >>> inflect_adjective("rojo"), inflect_adjective("francés")
    (('rojo', 'roja', 'rojos', 'rojas'), ('francés', 'francesa', 'franceses', 'francesas'))
    """
    if adjective.endswith("o"):
        feminine = adjective[:-1] + "a"
    elif adjective.endswith(("dor", "és", "án", "ñol")):
        feminine = plural(adjective)[:-2] + "a"
    else:
        feminine = adjective
    return adjective, feminine, plural(adjective), plural(feminine)


def _endings(stem: str, endings: tuple[str, ...]) -> Forms:
    first, second, third, fourth = (stem + ending for ending in endings)
    return first, second, third, fourth


def _change_stem(stem: str, change: str) -> str:
    if not change:
        return stem
    old, new = change.split(">")
    before, _, after = stem.rpartition(old)
    return before + new + after


def present(infinitive: str, change: str = "", yo: str = "") -> Forms:
    """Conjugate a Spanish verb in the present tense.

    Args:
        infinitive: the infinitive.
        change: change of the stem vowel where it is stressed, such as "o>ue", or an empty string.
        yo: irregular first person singular, or an empty string.

    >>> present("dormir", "o>ue")
    ('duermo', 'duerme', 'dormimos', 'duermen')
    """
    stem, ending = infinitive[:-2], infinitive[-2:]
    plain, stressed = (_endings(form, _PRESENT[ending]) for form in (stem, _change_stem(stem, change)))
    return yo or stressed[0], stressed[1], plain[2], stressed[3]


def preterite(infinitive: str, change: str = "") -> Forms:
    """Conjugate a Spanish verb in the preterite, the past tense of completed actions.

    Args:
        infinitive: the infinitive.
        change: change of the stem vowel in the present tense, such as "o>ue", or an empty string.

    >>> preterite("llegar"), preterite("dormir", "o>ue")
    (('llegué', 'llegó', 'llegamos', 'llegaron'), ('dormí', 'durmió', 'dormimos', 'durmieron'))
    """
    stem, ending = infinitive[:-2], infinitive[-2:]
    weak = _change_stem(stem, {"o>ue": "o>u", "e>i": "e>i", "e>ie": "e>i"}[change]) if change and ending == "ir" else stem
    yo, _, nosotros, _ = _endings(stem, _PRETERITE[ending])
    if ending == "ar" and stem[-1] in _BEFORE_E:
        yo = stem[:-1] + _BEFORE_E[stem[-1]] + "é"
    return yo, weak + _PRETERITE[ending][1], nosotros, weak + _PRETERITE[ending][3]


def imperfect(infinitive: str) -> Forms:
    """Conjugate a Spanish verb in the imperfect, the past tense of states.

    >>> imperfect("tener")
    ('tenía', 'tenía', 'teníamos', 'tenían')
    """
    return _endings(infinitive[:-2], _IMPERFECT[infinitive[-2:]])


def future(stem: str) -> Forms:
    """Conjugate a Spanish verb in the future tense, given its future stem, which usually is the infinitive.

    >>> future("tendr")
    ('tendré', 'tendrá', 'tendremos', 'tendrán')
    """
    return _endings(stem, _FUTURE)


def contract(preposition: str, noun_phrase: str) -> LinkedText:
    """Join a Spanish preposition and a noun phrase, contracting "a el" to "al" and "de el" to "del", which have the links of both words.

    >>> contract("cerca de", "el parque"), contract("a", "él")
    ('cerca del parque', 'a él')
    """
    if noun_phrase.startswith("el ") and preposition.endswith(("a", "de")):
        (*before, last), (article, *rest) = words_of(preposition), words_of(noun_phrase)
        return join_words(*before, fuse(f"{last}l", last, article), *rest)
    return join_words(preposition, noun_phrase)


def conjunction(following: str) -> str:
    """Return "y", or "e" before a phrase that starts with the sound i.

    >>> conjunction("Ana"), conjunction("Irene")
    ('y', 'e')
    """
    return "e" if following.lower().startswith(("i", "hi")) else "y"
