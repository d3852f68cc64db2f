"""Further kinds of models: random cells of every place show the numbers of an independent trace."""

import pytest

from tests.browser import Browser
from tests.serving.explore_page import canvases, move_to, open_page, settle
from tests.serving.runs import FAMILIES
from tests.serving.shown import Shown
from tests.serving.test_cells import check_maps, check_scalars

LONG = ("experts", "recurrent")


@pytest.mark.parametrize(
    "shown", [pytest.param(each, marks=pytest.mark.long if each in LONG else pytest.mark.soak) for each in FAMILIES], indirect=True
)
def test_cells_of_every_place_show_the_numbers_of_the_model(browser: Browser, shown: Shown) -> None:
    open_page(browser, shown.server, shown.state())
    places = browser.page.eval_on_selector_all("[data-place]", "(all) => all.map((each) => each.dataset.place)")
    assert len(places) >= 3
    for place in places:
        move_to(browser, shown.state(place=place))
        assert check_maps(browser, shown.trace) >= 1, place
        check_scalars(browser, shown.trace)
        found = browser.page.locator("#stage .error:visible").all_inner_texts()
        assert [each for each in found if "no value" not in each] == [], place


@pytest.mark.soak
@pytest.mark.parametrize("shown", FAMILIES, indirect=True)
def test_the_tour_of_every_family_is_whole(browser: Browser, shown: Shown) -> None:
    """Each step has a text with all of its values, and brings the page to something that it marks."""
    open_page(browser, shown.server, shown.state(tour=0))
    n_steps = int(browser.page.locator("#tour progress").get_attribute("max") or 0)
    titles = list[str]()
    for _ in range(n_steps):
        browser.page.wait_for_selector(".toured", timeout=10_000)
        settle(browser)
        titles.append(browser.page.inner_text("#tour h2"))
        text = browser.page.inner_text("#tour .tour-text")
        assert not [mark for mark in ("{", "}", "undefined", "null", "NaN", "[object", "–") if mark in text], (titles[-1], text)
        browser.page.click("[data-focus=tour-next]")
        settle(browser)
    assert browser.page.locator("#tour").is_hidden() and len(set(titles)) == n_steps >= 4
    assert ("Position bias" in titles) == (shown.run.model.config.kind == "decoder")
    assert canvases(browser, "#vectors canvas")
