"""Images from folders and zip files: names, classes, pixel formats, and damaged, hostile or other files."""

import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transom.data.images import image_files as module
from transom.data.images.image_files import decode_image, decode_sized_image, list_images, list_splits, read_file, read_images
from transom.data.labeled.damaged_files import report_damaged
from transom.errors import DataError, UnreadableFileError
from transom.files.limits import MAX_ERROR_CHARACTERS, MAX_IMAGE_PIXELS


def picture(shade: int = 100, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, shade if mode in ("L", "P", "1") else (shade,) * len(mode))


def data(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    image.save(file := BytesIO(), form, **options)
    return file.getvalue()


def lay_out(root: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data(picture(10 * number)))
    return root


def zipped(root: Path, to: Path) -> Path:
    with zipfile.ZipFile(to, "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, file.relative_to(root).as_posix())
    return to


@pytest.mark.parametrize("form", [lambda root: root, lambda root: zipped(root, root.with_suffix(".zip"))], ids=["folder", "zip"])
def test_classes_are_the_folders_and_order_is_that_of_names(form: Callable[[Path], Path], tmp_path: Path) -> None:
    root = lay_out(tmp_path / "set", ["dog/b.png", "cat/x.PNG", "dog/a.png", "dog/.hidden.png", "__MACOSX/cat/y.png", ".git/z/a.png"])
    (root / "dog" / "notes.txt").write_text("two dogs")
    found = read_images(form(root), 4, 3)
    assert found.names == ["cat/x.PNG", "dog/a.png", "dog/b.png"] and found.labels == ["cat", "dog", "dog"]
    assert found.n_ignored == 1 and len(set(found.digests)) == 3
    assert found.load([2, 0])[:, 0, 0, 0].tolist() == [0, 10] and found.load([1]).shape == (1, 3, 4, 4)
    part = found.select([2, 1], "part")
    assert (
        part.names == ["dog/b.png", "dog/a.png"]
        and torch.equal(part.load([1]), found.load([1]))
        and part.describe_sample(0) == "part, dog/b.png"
    )


def test_folders_around_all_classes_are_passed_over(tmp_path: Path) -> None:
    root = lay_out(tmp_path, ["photos/2024/cat/a.png", "photos/2024/cat/old/b.png", "photos/2024/dog/c.png"])
    assert list_images(root).names == ["cat/a.png", "cat/old/b.png", "dog/c.png"]
    only = lay_out(tmp_path / "one", ["cat/a.png", "cat/b.png"])
    assert list_images(only).names == ["cat/a.png", "cat/b.png"], "a class is not passed over"


def test_what_does_not_fit_into_memory_is_read_when_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay_out(tmp_path, ["a/1.png", "b/2.png", "b/3.png"])
    kept = read_images(root, 4, 3)
    monkeypatch.setattr(module, "MAX_CACHED_BYTES", 100)
    anew = read_images(root, 4, 3)
    assert torch.equal(kept.load([2, 0]), anew.load([2, 0])) and kept.digests == anew.digests


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("RGB", (9, 90, 200), (9, 90, 200)),
        ("CMYK", (0, 0, 0, 255), (0, 0, 0)),
        ("LA", (50, 0), (255, 255, 255)),  # transparent: white
        ("RGBA", (200, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (200, 0, 0, 255), (200, 0, 0)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 257 * 40, (40, 40, 40)),
    ],
)
def test_every_mode_becomes_colours_of_eight_bits(mode: str, colour: object, expected: tuple[int, ...]) -> None:
    image = Image.new(mode, (3, 3), colour)  # type: ignore[arg-type]
    pixels = decode_image(data(image, "TIFF" if mode == "CMYK" else "PNG"), "it", 3, 3)
    assert pixels.shape == (3, 3, 3) and tuple(pixels[:, 1, 1].tolist()) == expected
    grey = decode_image(data(image, "TIFF" if mode == "CMYK" else "PNG"), "it", 3, 1)
    assert grey.shape == (1, 3, 3) and abs(int(grey[0, 1, 1]) - np.dot(expected, (0.299, 0.587, 0.114))) <= 1


def test_the_middle_square_is_taken_and_a_cameras_turn_is_undone() -> None:
    wide = Image.new("RGB", (12, 4), "black")
    wide.paste((255, 255, 255), (4, 0, 8, 4))
    assert (decode_image(data(wide), "it", 4, 3) == 255).all()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    upright = Image.new("L", (4, 4), 0)
    upright.paste(255, (0, 0, 4, 2))
    turned = decode_image(data(upright, "JPEG", exif=exif, quality=95), "it", 4, 1)[0]
    assert turned[:, 2:].min() > 200 and turned[:, :2].max() < 50, "what was on top is on the right"


def test_large_jpegs_are_brought_to_size() -> None:
    big = Image.effect_noise((800, 600), 40)
    found = decode_image(data(big, "JPEG", quality=95), "it", 32, 1).astype(float)
    assert found.shape == (1, 32, 32) and abs(found.mean() - np.asarray(big).mean()) < 3


def bomb() -> bytes:
    """Write a PNG file of a hundred bytes that claims 10 billion pixels."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("broken", "message", "reason"),
    [
        (b"", "found a file that cannot be decoded", "cannot identify image file"),
        (b"not an image", "found a file that cannot be decoded", "cannot identify image file"),
        (data(picture(size=(64, 64)), "JPEG")[:300], "found a file that cannot be decoded", "Truncated File Read"),
        (data(picture(size=(64, 64)))[:60], "found a file that cannot be decoded", "truncated"),
        (bomb(), f"at most {MAX_IMAGE_PIXELS:,} pixels, found", f"more than {MAX_IMAGE_PIXELS:,} pixels"),
        (data(Image.new("1", (9000, 9000))), f"at most {MAX_IMAGE_PIXELS:,} pixels, found 9,000 x 9,000", "more than"),
        (data(Image.new("1", (9600, 9600))), f"at most {MAX_IMAGE_PIXELS:,} pixels, found", "more than"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be decoded", "cannot identify"),  # no format of ours
    ],
)
def test_a_damaged_or_hostile_image_is_named(broken: bytes, message: str, reason: str, tmp_path: Path) -> None:
    root = lay_out(tmp_path, ["a/1.png", "b/2.png"])
    (root / "b" / "3.jpg").write_bytes(broken)
    with pytest.raises(UnreadableFileError, match=message) as caught:
        decode_image(broken, "3.jpg", 8, 3)
    assert reason in caught.value.reason and "3.jpg" not in caught.value.reason
    with pytest.raises(DataError, match=r"found 1 of 3 that cannot: b/3\.jpg") as all_read:
        read_images(root, 8, 3)
    assert caught.value.reason in str(all_read.value) and "\n" not in str(all_read.value)


def damage(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).write_bytes(b"not an image")


def test_all_damaged_images_are_told_at_once(tmp_path: Path) -> None:
    root = lay_out(tmp_path, [f"{label}/{number}.png" for label in "ab" for number in range(10)])
    damage(root, [f"a/{number}.png" for number in range(7)])
    with pytest.raises(DataError) as caught:
        read_images(root, 8, 3, skip_damaged=False)
    assert str(caught.value) == (
        f"{root}: expected images that can be read, found 7 of 20 that cannot: a/0.png, a/1.png, a/2.png, a/3.png, a/4.png (cannot identify"
        " image file), ...; repair or remove them, or skip them with --skip-damaged (data.skip_damaged=true)"
    )
    with pytest.raises(DataError, match=r"[.]{3}; repair or remove them$"):  # no option to skip them
        read_images(root, 8, 3)
    (root / "a" / "0.png").write_bytes(data(picture(size=(64, 64)))[:60])
    with pytest.raises(DataError, match=r"that cannot: a/0[.]png \(.*truncated.*\), a/1[.]png, .* \(cannot identify image file\)"):
        read_images(root, 8, 3)


def test_a_message_on_many_damaged_images_with_long_names_is_short(tmp_path: Path) -> None:
    names = [f"{label}/{'long ' * 40}{number}.png" for label in "ab" for number in range(10)]
    with pytest.raises(DataError) as caught:
        report_damaged(dict.fromkeys(names[:6], "cannot identify image file"), names, [name[0] for name in names], "it", "image", False)
    assert len(str(caught.value)) < MAX_ERROR_CHARACTERS and "2.png (cannot identify" in str(caught.value)


@pytest.mark.parametrize("cached", [True, False])
def test_damaged_images_are_skipped_if_asked(cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay_out(tmp_path, ["a/1.png", "a/2.png", "b/3.png", "b/4.png"])
    expected = read_images(root, 4, 3)
    damage(root, ["a/1.png", "b/3.png"])
    monkeypatch.setattr(module, "MAX_CACHED_BYTES", 2**31 if cached else 100)
    found = read_images(root, 4, 3, skip_damaged=True)
    assert (found.names, found.labels, len(found)) == (["a/2.png", "b/4.png"], ["a", "b"], 2)
    assert found.digests == [expected.digests[1], expected.digests[3]] and torch.equal(found.load([0, 1]), expected.load([1, 3]))
    assert found.sizes is not None and found.sizes.tolist() == [[6, 6]] * 2
    assert found.notes == ("2 of 4 images skipped, because they cannot be read: a/1.png, b/3.png (cannot identify image file)",)


def test_a_class_of_damaged_images_does_not_vanish(tmp_path: Path) -> None:
    root = lay_out(tmp_path, ["a/1.png", "b/2.png", "b/3.png"])
    damage(root, ["a/1.png", "b/3.png"])
    with pytest.raises(DataError, match=r"expected images that can be read of every class, found none of 'a': a/1[.]png \(cannot"):
        read_images(root, 4, 3, skip_damaged=True)


def test_the_size_before_resizing_is_that_of_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    large = Image.effect_noise((800, 600), 40)
    assert decode_sized_image(data(large, "JPEG"), "it", 32, 1)[1:] == (800, 600), "and not that of a fraction that was decoded"
    assert decode_sized_image(data(large, "JPEG", exif=exif), "it", 32, 1)[1:] == (600, 800)
    root = lay_out(tmp_path, ["a/1.png", "b/2.png"])
    (root / "a" / "1.png").write_bytes(data(picture(size=(9, 5))))
    found = read_images(root, 4, 3)
    assert found.sizes is not None and found.sizes.tolist() == [[9, 5], [6, 6]]
    assert found.select([1], "part").sizes.tolist() == [[6, 6]]  # type: ignore[union-attr]


def test_what_is_no_set_of_images_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="found nothing there"):
        list_images(tmp_path / "none")
    (tmp_path / "text.zip").write_text("PK, or so")
    with pytest.raises(DataError, match="found another file"):
        list_images(tmp_path / "text.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected images as CLASS/NAME\.jpg, found none"):
        list_images(tmp_path / "empty")
    with pytest.raises(DataError, match=r"found stray\.png outside of any; move it into one"):
        list_images(lay_out(tmp_path / "stray", ["cat/a.png", "stray.png"]))
    for special in (tmp_path / "pipe.zip", Path("/dev/zero")):
        if special.suffix:
            os.mkfifo(special)
        for read in (list_images, read_file):
            with pytest.raises(DataError, match="found a device or a pipe"):
                read(special)
    with pytest.raises(DataError, match=r"expected classes whose names are UTF-8, found .odd.udcff."):
        list_images(lay_out(tmp_path / "names", ["cat/a.png", "odd\udcff/b.png"]))
    monkeypatch.setattr(module, "MAX_IMAGE_BYTES", 50)
    with pytest.raises(DataError, match=r"found 1 of 1 that cannot: cat/a[.]png \(more than 50 bytes\)"):
        read_images(lay_out(tmp_path / "large", ["cat/a.png"]), 8, 3)


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_plain_file_is_not_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.png"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    for read in (list_images, read_file):
        with pytest.raises(DataError, match=r"odd\.png: expected .*, found a device or a pipe"):
            read(path)


def test_too_many_pixels_are_told_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        decode_image(data(Image.new("1", (9000, 9000))), "large.png", 8, 3)
    assert str(caught.value).count("large.png") == 1 and str(caught.value).count("expected") == 1


def test_a_damaged_zip_names_its_member(tmp_path: Path) -> None:
    path = zipped(lay_out(tmp_path / "set", ["a/1.png", "b/2.png"]), tmp_path / "set.zip")
    whole = path.read_bytes()
    place = whole.index(b"IDAT", whole.index(b"b/2.png"))
    path.write_bytes(whole[:place] + bytes(8) + whole[place + 8 :])
    with pytest.raises(DataError, match=r"set\.zip: expected .*, found 1 of 2 that cannot: b/2\.png \(Bad CRC"):
        read_images(path, 8, 3)


def test_split_folders_are_recognized(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "set", ["train/cat/a.png", "train/dog/b.png", "val/cat/c.png", "test/dog/d.png"])
    for path in (root, zipped(root, tmp_path / "set.zip"), tmp_path / "outer"):
        if path.name == "outer":
            path.mkdir()
            root.rename(path / "set")
        assert list_splits(path) == ["test", "train", "valid"]
        assert list_images(path, "train").names == ["cat/a.png", "dog/b.png"] and list_images(path, "train").labels == ["cat", "dog"]
        assert read_images(path, 4, 3, "valid").names == ["cat/c.png"]
        with pytest.raises(DataError, match=r"expected class folders, found the split folders test and train and val; give one of them"):
            list_images(path)
    plain = lay_out(tmp_path / "plain", ["train/a.png", "bus/b.png"])
    assert list_splits(plain) == [] and list_images(plain, "valid").labels == ["bus", "train"], "a class may be called train"


def test_classes_come_from_a_table_or_from_file_names(tmp_path: Path) -> None:
    kaggle = lay_out(tmp_path / "kaggle", ["images/1.png", "images/2.png", "images/3.png"])
    (kaggle / "notes.csv").write_text("a,b\n1,2\n")
    (kaggle / "labels.csv").write_text("id,breed\n1,pug\n2,boxer\n3,pug\n")
    found = list_images(kaggle)
    assert (found.names, found.labels) == (["images/1.png", "images/2.png", "images/3.png"], ["pug", "boxer", "pug"])
    assert found.notes == ("the classes are taken from labels.csv",) and found.n_ignored == 1
    assert read_images(kaggle, 4, 3).load([1])[0, 0, 0, 0] == 10
    hub = lay_out(tmp_path / "hub", ["a.png", "b.png"])
    (hub / "metadata.jsonl").write_text('{"file_name": "a.png", "label": 0}\n{"file_name": "b.png", "label": 1}\n')
    assert list_images(hub).labels == ["0", "1"]
    pets = lay_out(tmp_path / "pets", ["Great_Dane_1.png", "Great_Dane_12.png", "cat.0.png", "cat.1.png"])
    assert list_images(pets).labels == ["Great_Dane", "Great_Dane", "cat", "cat"]
    assert "the 2 classes are taken from the file names" in list_images(pets).notes[0]
    with pytest.raises(DataError, match=r"found IMG_.\.png outside of any; move it into one, or add a table"):
        list_images(lay_out(tmp_path / "camera", ["IMG_1.png", "IMG_2.png"]))
    nested = lay_out(tmp_path / "tiny", ["n01/images/n01_0.png", "n01/images/n01_1.png", "n02/images/n02_0.png"])
    assert list_images(nested).labels == ["n01", "n01", "n02"]
