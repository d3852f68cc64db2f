"""The alignment picture that the demo benchmark writes."""

from xml.etree import ElementTree

from benchmarks.demo import alignment_svg_file
from tests.inspection.pages.test_alignment_pictures import SMALL


def test_the_svg_file_is_standalone() -> None:
    read = ElementTree.fromstring(alignment_svg_file(SMALL))
    assert read.tag == "{http://www.w3.org/2000/svg}svg"
    style = read.findtext("{http://www.w3.org/2000/svg}style") or ""
    classes = {name for element in read.iter() for name in element.get("class", "").split()} - {"alignment"}
    assert classes and all(f".{name} {{" in style for name in classes - {"unit"})
    assert "url(" not in style and "prefers-color-scheme: dark" in style
