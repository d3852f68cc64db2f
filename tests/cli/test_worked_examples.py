"""``transom worked-examples`` prints every number of the articles, the errata, and JSON."""

from tests.cli.conftest import Call
from transom.lab.examples import load_articles, load_examples


def test_all_examples_are_printed_with_their_counts(transom: Call) -> None:
    told = transom("worked-examples")
    assert told.code == 0
    lines = told.out.splitlines()
    assert all(any(example.id in line.split() and example.verdict in line for line in lines) for example in load_examples().values())
    assert "31 wrong steps, and 41 values that follow from them" in told.out


def test_json_has_the_right_value_and_the_first_wrong_step(transom: Call) -> None:
    found = transom("worked-examples", "--json").json
    assert found["counts"]["erratum"] == 72
    assert [each["id"] for each in found["examples"]] == list(load_examples())
    by_id = {each["id"]: each for each in found["examples"]}
    wrong = by_id["004-bank-distance"]
    assert (wrong["verdict"], wrong["recomputed"], wrong["first_wrong"], wrong["own_step"]) == ("erratum", 11.0, "004-bank-2", False)
    assert by_id["004-bank-2"]["explanation"].startswith("The sentence has 13 words")
    assert len(found["conceptual"]) == sum(len(article.conceptual) for article in load_articles())


def test_one_article_and_its_errata(transom: Call) -> None:
    page = transom("worked-examples", "--article", "3", "--errata").out
    assert "003:24  weights of the embedding matrix" in page and "50,000 times 12,288 is 614.4 million." in page
    assert "003:57" in page and "002:" not in page
    assert {each["article"] for each in transom("worked-examples", "--article", "003", "--json").json["conceptual"]} == {"003"}


def test_an_unknown_article_is_refused(transom: Call) -> None:
    told = transom("worked-examples", "--article", "7")
    assert told.code == 2
    assert "--article: expected the number of an article, from 000 to 004, found '7'" in told.error
    assert "found ''" in transom("worked-examples", "--article", "").error


def test_json_of_the_errata_has_no_other_examples(transom: Call) -> None:
    found = transom("worked-examples", "--errata", "--json").json
    assert len(found["examples"]) == found["counts"]["erratum"] == 72 and found["counts"]["agrees at the printed precision"] > 0
