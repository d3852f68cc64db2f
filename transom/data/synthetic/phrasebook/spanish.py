"""Spanish word forms by rule: plurals, agreement, conjugation, contraction.

Verb forms come in fours, for yo, él, nosotros and ellos. Adjectives come in fours, masculine and feminine, singular then plural.
"""

from collections.abc import Mapping

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
"""The two verbs that mean "be"; their past is the imperfect."""


def plural(word: str) -> str:
    """Form a regular plural.

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
    """Inflect an adjective for gender and number.

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
    """Conjugate in the present; the stem vowel changes where it is stressed.

    >>> present("dormir", "o>ue")
    ('duermo', 'duerme', 'dormimos', 'duermen')
    """
    stem, ending = infinitive[:-2], infinitive[-2:]
    plain, stressed = (_endings(form, _PRESENT[ending]) for form in (stem, _change_stem(stem, change)))
    return yo or stressed[0], stressed[1], plain[2], stressed[3]


def preterite(infinitive: str, change: str = "") -> Forms:
    """Conjugate in the preterite, the past of completed actions.

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
    """Conjugate in the imperfect, the past of states.

    >>> imperfect("tener")
    ('tenía', 'tenía', 'teníamos', 'tenían')
    """
    return _endings(infinitive[:-2], _IMPERFECT[infinitive[-2:]])


def future(stem: str) -> Forms:
    """Conjugate in the future from its stem, which is mostly the infinitive.

    >>> future("tendr")
    ('tendré', 'tendrá', 'tendremos', 'tendrán')
    """
    return _endings(stem, _FUTURE)


def contract(preposition: str, noun_phrase: str) -> str:
    """Join a preposition and a noun phrase: a + el = al, de + el = del.

    >>> contract("cerca de", "el parque"), contract("a", "él")
    ('cerca del parque', 'a él')
    """
    if noun_phrase.startswith("el ") and preposition.endswith(("a", "de")):
        return f"{preposition}l {noun_phrase[3:]}"
    return f"{preposition} {noun_phrase}"


def coordinate(first: str, second: str) -> str:
    """Coordinate two phrases with "and", which is e instead of y before the sound i.

    >>> coordinate("Luis", "Ana"), coordinate("Ana", "Irene")
    ('Luis y Ana', 'Ana e Irene')
    """
    return f"{first} {'e' if second.lower().startswith(('i', 'hi')) else 'y'} {second}"
