from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from transom.inspection.pages.markup import escape_control_characters, node, preformatted, to_html, to_svg

ANY_TEXT = st.text(st.characters(codec=None))  # lone surrogates too


class Reader(HTMLParser):
    """What a browser makes of a page: its elements and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(ANY_TEXT, ANY_TEXT)
def test_text_and_attributes_come_back_as_text(text: str, attribute: str) -> None:
    page = Reader(to_html(node("p", text, node("b", text), text, title=attribute)))
    assert page.tags == ["p", "b"]
    assert page.text == escape_control_characters(text) * 3
    assert page.attributes == [("title", escape_control_characters(attribute))]


@given(ANY_TEXT)
def test_visible_text_can_be_written_and_obeys_nothing(text: str) -> None:
    shown = escape_control_characters(text)
    shown.encode("utf-8")
    assert len(shown) == len(text)
    assert all(character.isspace() or character.isprintable() or ord(character) > 0x9F for character in shown)
    assert escape_control_characters(shown) == shown


def test_control_characters_are_shown_not_obeyed() -> None:
    assert escape_control_characters("\x1b]0;x\x07\x00\x7f\x9b\u202e\ud800") == "␛]0;x␇␀␡\ufffd\ufffd\ufffd"


def test_ordinary_text_of_any_script_stays() -> None:
    text = "Grüße, мир, 世界, שלום, 👩‍👩‍👧, é"
    assert escape_control_characters(text) == text


def test_preformatted_text_keeps_its_lines() -> None:
    assert to_html(preformatted("a\n  <b>\x1b")) == "<pre>a\n  &lt;b&gt;␛</pre>"


def test_attribute_names_and_omission() -> None:
    assert to_html(node("p", None, "x", class_="a", aria_label="b", id=None)) == '<p class="a" aria-label="b">x</p>'


def test_svg_file_declares_its_namespace() -> None:
    assert to_svg(node("svg", node("title", "a < b"))) == '<svg xmlns="http://www.w3.org/2000/svg"><title>a &lt; b</title></svg>\n'
