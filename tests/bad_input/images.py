"""Images that are damaged, claim any size, or are something else, alone, in folders and in zip files."""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable

from tests.bad_input.case import Accepted, Case, Draw, Kinds, Place, Refused
from tests.bad_input.good_runs import png, png_chunk

KINDS = Kinds()

TRAIN = ("--out", "out", "--set", "training.max_steps=1", "--set", "model.image_size=8", "--set", "model.stem.channels=[8]")


def seen_by(draw: Draw, about: str, content: bytes, suffix: str = ".png", names: tuple[str, ...] = ()) -> Case:
    """Have a bad image read: by itself, among good ones in a folder, or in a zip file."""
    name = f"bad{suffix}"
    way = draw.choice(["classify", "classify a list", "classify a folder", "train on a folder", "train on a zip", "compare attention"])

    def write(place: Place) -> None:
        if way.endswith(("folder", "zip")):
            files = {f"{label}/{number}.png": grey(draw) for label in ("dark", "light") for number in range(3)}
            files[f"dark/{name}"] = content
            if way.endswith("zip"):
                place.write("images.zip", zipped(files))
            for each, data in {} if way.endswith("zip") else files.items():
                place.write(f"images/{each}", data)
        else:
            place.write(name, content)
            place.write("list.txt", f"{name}\n")
        place.copy("images")

    arguments = {
        "classify": ["classify", "run", f"{name}"],
        "classify a list": ["classify", "run", "--input", "list.txt"],
        "classify a folder": ["classify", "run", "--labeled-data", "images"],
        "train on a folder": ["train", "images", "--images", "images", *TRAIN],
        "train on a zip": ["train", "images", "--images", "images.zip", *TRAIN],
        "compare attention": ["compare-attention", "run", "--input", name],
    }[way]
    return Case(f"{way}: {about}", arguments, write, Refused((name, *names)))


def grey(draw: Draw, size: int = 8) -> bytes:
    """Draw a good image."""
    return png(size, size, [draw.randbytes(size) for _ in range(size)])


def zipped(files: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Pack files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", how) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def saved(draw: Draw, form: str, size: int = 32) -> bytes:
    """Draw a good image of another format."""
    from PIL import Image

    content = io.BytesIO()
    Image.frombytes("RGB", (size, size), draw.randbytes(3 * size * size)).save(content, form)
    return content.getvalue()


@KINDS.add
def no_image(draw: Draw) -> Case:
    content = draw.choice(
        [b"", b"ab\n", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", draw.randbytes(999)]
    )
    return seen_by(
        draw, f"{content[:20]!r} called an image", content, draw.choice([".png", ".jpg", ".gif", ".bmp", ".webp", ".tif", ".ppm"])
    )


@KINDS.add
def a_png_that_is_cut(draw: Draw) -> Case:
    content = grey(draw)
    return seen_by(draw, "a PNG, cut", content[: draw.randrange(1, len(content) - 40)])


@KINDS.add
def a_png_header_with_a_changed_bit(draw: Draw) -> Case:
    content = grey(draw)
    return seen_by(draw, "a PNG whose header was changed", content[:12] + draw.flipped(content[12:33]) + content[33:])


@KINDS.add
def png_pixels_with_a_wrong_checksum(draw: Draw) -> Case:
    content = grey(draw)
    return seen_by(draw, "a PNG whose pixels were changed", content[:41] + draw.flipped(content[41:50]) + content[50:])


@KINDS.add
def a_png_of_any_size(draw: Draw) -> Case:
    side = draw.choice([(100_000, 100_000), (2**31 - 1, 1), (1, 2**31 - 1), (8_193, 8_193), (2**31 - 1, 2**31 - 1), (0, 0), (0, 8), (8, 0)])
    return seen_by(draw, f"a PNG that claims {side[0]} x {side[1]} pixels", png(*side, [b"\0" * 8] * 8))


@KINDS.add
def a_png_of_nothing_but_zeros(draw: Draw) -> Case:
    """A decompression bomb: a small file of a huge image."""
    side = draw.choice([9_000, 16_000])
    squeezer = zlib.compressobj(9)
    rows = squeezer.compress(b"\0" * (side + 1) * 1000)
    pixels = rows + b"".join(squeezer.compress(b"\0" * (side + 1) * 1000) for _ in range(side // 1000 - 1)) + squeezer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return seen_by(draw, f"a PNG of {side} x {side} zeros", b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks))


@KINDS.add
def a_png_with_a_text_bomb(draw: Draw) -> Case:
    text = b"Comment\0\0" + zlib.compress(b"a" * draw.choice([2**26, 2**28]))
    name = draw.choice([b"zTXt", b"iCCP"])
    body = text if name == b"zTXt" else b"icc\0\0" + text[9:]
    if name == b"iCCP":
        return seen_by(draw, "a PNG whose colour profile unpacks to a gigabyte, and no pixels", png(8, 8, [], ((name, body),)))
    return seen_by(draw, "a PNG whose comment unpacks to a gigabyte", png(8, 8, [b"\0" * 8] * 8, ((name, body),)))


@KINDS.add
def a_jpeg_that_is_cut(draw: Draw) -> Case:
    content = saved(draw, "JPEG")
    return seen_by(draw, "a JPEG, cut", content[: draw.randrange(2, len(content) // 2)], ".jpg")


@KINDS.add
def a_jpeg_without_tables(draw: Draw) -> Case:
    content = saved(draw, "JPEG")
    marker = draw.choice([b"\xff\xdb", b"\xff\xc0"])
    return seen_by(draw, f"a JPEG without {marker!r}", content.replace(marker, b"\xff\xfe"), ".jpg")


@KINDS.add
def a_gif_that_is_cut(draw: Draw) -> Case:
    content = saved(draw, "GIF")
    return seen_by(draw, "a GIF, cut", content[: draw.randrange(6, len(content) // 2)], ".gif")


@KINDS.add
def a_bmp_of_any_size(draw: Draw) -> Case:
    width, height = draw.choice([(2**30, 2**30), (2**31 - 1, 1), (50_000, -50_000), (0, 0), (-8, 8)])
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return seen_by(
        draw,
        f"a BMP that claims {width} x {height} pixels",
        b"BM" + struct.pack("<IHHI", 54 + 192, 0, 0, 54) + header + b"\0" * 192,
        ".bmp",
    )


@KINDS.add
def a_tiff_with_odd_tags(draw: Draw) -> Case:
    values = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: 64}
    tag = draw.choice([256, 257, 258, 259, 273, 277])
    values[tag] = {256: 2**31, 257: 2**31, 258: 77, 259: 999, 273: 2**31, 277: 60_000}[tag]
    entries = b"".join(struct.pack("<HHII", number, 4, 1, value) for number, value in sorted(values.items()))
    return seen_by(
        draw, f"a TIFF whose tag {tag} is {values[tag]}", b"II*\0" + struct.pack("<IH", 8, len(values)) + entries + b"\0" * 4, ".tif"
    )


@KINDS.add
def a_webp_that_is_cut(draw: Draw) -> Case:
    content = saved(draw, "WEBP")
    return seen_by(draw, "a WebP, cut", content[: draw.randrange(4, len(content) // 2)], ".webp")


@KINDS.add
def a_ppm_with_an_odd_header(draw: Draw) -> Case:
    header = draw.choice(
        [
            b"P5 99999 99999 255\n",
            b"P6 -8 8 255\n",
            b"P5 8 8 99999999\n",
            b"P6 8 8 0\n",
            b"P5 " + b"9" * 5_000 + b" 8 255\n",
            b"P6 8\n",
            b"P3 8 8 255 x",
        ]
    )
    return seen_by(draw, f"a PPM that begins {header[:20]!r}", header + b"\0" * draw.choice([0, 10]), ".ppm")


@KINDS.add
def a_format_that_is_not_read(draw: Draw) -> Case:
    form = draw.choice(["ICO", "TGA", "PCX", "SGI", "PDF", "EPS", "IM", "JPEG2000"])
    return seen_by(draw, f"{form} called a PNG", saved(draw, form))


def packed(
    draw: Draw, about: str, content: bytes, names: tuple[str, ...] = ("images.zip",), more: Callable[[Place], object] | None = None
) -> Case:
    """Have a zip file read."""
    scored = draw.random() < 0.5
    arguments = ["classify", "run", "--labeled-data", "images.zip"] if scored else ["train", "images", "--images", "images.zip", *TRAIN]

    def write(place: Place) -> None:
        place.write("images.zip", content)
        place.copy("images")
        if more is not None:
            more(place)

    return Case(f"{arguments[0]}: {about}", arguments, write, Refused(names))


def good_zip(draw: Draw, how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Pack some good images."""
    return zipped({f"{label}/{number}.png": grey(draw) for label in ("dark", "light") for number in range(3)}, how)


@KINDS.add
def a_zip_that_is_cut(draw: Draw) -> Case:
    return packed(draw, "a zip file, cut", draw.cut(good_zip(draw)[:-1]))


@KINDS.add
def a_zip_with_damaged_members(draw: Draw) -> Case:
    content = bytearray(good_zip(draw, zipfile.ZIP_STORED))
    at = content.index(b"IDAT") + draw.randrange(4, 20)
    content[at] ^= 255
    return packed(draw, "a zip file with a changed byte", bytes(content))


@KINDS.add
def a_zip_with_secret_members(draw: Draw) -> Case:
    content = bytearray(good_zip(draw))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(mark)
        content[at + place] |= 1
    return packed(draw, "a zip file with an encrypted member", bytes(content))


@KINDS.add
def a_zip_of_an_unknown_method(draw: Draw) -> Case:
    content, method = bytearray(good_zip(draw)), draw.choice([1, 6, 97, 98, 255])
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = content.index(mark)
        content[at + place] = method
    return packed(draw, f"a zip file packed by method {method}", bytes(content))


@KINDS.add
def a_zip_bomb(draw: Draw) -> Case:
    size = draw.choice([2**27 + 1, 2**28])
    return packed(draw, f"a zip file with a member of {size:,} zeros", zipped({"dark/0.png": grey(draw), "dark/bomb.png": b"\0" * size}))


@KINDS.add
def a_zip_that_leads_out(draw: Draw) -> Case:
    """Names are names only: nothing is unpacked, and what goes up is passed over like a hidden file."""
    name = draw.choice(["../../../outside.png", "/outside.png", "dark/../../outside.png", "C:\\outside.png"])
    content = zipped({"dark/0.png": grey(draw), name: b"no image"})
    expects = Accepted(("accuracy",)) if ".." in name else Refused(("outside.png",))
    command = ["classify", "GOOD/images", "--labeled-data", "images.zip"]
    return Case(f"classify: a zip file with {name}", command, lambda place: place.write("images.zip", content), expects)


@KINDS.add
def a_zip_whose_directory_lies(draw: Draw) -> Case:
    content = bytearray(good_zip(draw))
    place, value = draw.choice([(20, 1), (24, 1), (42, 1), (42, 0x7FFFFFFF), (42, 0xFFFFFFFE)])  # bytes packed, bytes, start
    at = content.index(b"PK\x01\x02") + place
    content[at : at + 4] = struct.pack("<I", value)
    return packed(draw, f"a zip file whose directory holds {value} at {place}", bytes(content))


def foldered(draw: Draw, about: str, write: Callable[[Place], object], names: tuple[str, ...] = ()) -> Case:
    """Have a folder called images read."""
    scored = draw.random() < 0.5
    arguments = ["classify", "run", "--labeled-data", "images"] if scored else ["train", "images", "--images", "images", *TRAIN]

    def prepare(place: Place) -> None:
        place.copy("images")
        write(place)

    return Case(f"{arguments[0]}: {about}", arguments, prepare, Refused(names))


@KINDS.add
def no_images(draw: Draw) -> Case:
    files = draw.choice([[], ["dark/0.txt"], [".hidden/0.png"], ["dark/.0.png"], ["__MACOSX/dark/0.png"], ["dark"]])

    def write(place: Place) -> None:
        (place.here / "images").mkdir()
        for name in files:
            place.write(f"images/{name}", b"")

    return foldered(draw, f"a folder of {files}", write, ("images",))


@KINDS.add
def an_image_without_a_class(draw: Draw) -> Case:
    def write(place: Place) -> None:
        place.write("images/dark/0.png", grey(draw))
        place.write("images/lost.png", grey(draw))

    return foldered(draw, "an image beside the classes", write, ("lost.png",))


@KINDS.add
def images_of_one_class(draw: Draw) -> Case:
    def write(place: Place) -> None:
        for number in range(12):
            place.write(f"images/same/{number}.png", grey(draw))

    return Case("train on one class", ["train", "images", "--images", "images", *TRAIN], write)


@KINDS.add
def classes_that_the_model_has_not(draw: Draw) -> Case:
    label = draw.choice([draw.word(), "\x1b[31m", "x" * 250, "dark\nlight", "\udcff"])

    def write(place: Place) -> None:
        place.copy("images")
        folder = place.here / "images" / label
        folder.mkdir(parents=True)
        (folder / "0.png").write_bytes(grey(draw))

    return Case(f"classify: a class {label!a:.40}", ["classify", "run", "--labeled-data", "images"], write)


@KINDS.add
def classes_without_a_good_name(draw: Draw) -> Case:
    label = draw.choice(["odd\udcff", "\udcff"])

    def write(place: Place) -> None:
        for each in ("dark", label):
            folder = place.here / "images" / each
            folder.mkdir(parents=True)
            for number in range(6):
                (folder / f"{number}.png").write_bytes(grey(draw))

    return Case(f"train: a class {label!a}", ["train", "images", "--images", "images", *TRAIN], write)


@KINDS.add
def a_pipe_or_device_called_an_image(draw: Draw) -> Case:
    what = draw.choice(["pipe", "/dev/zero", "/dev/urandom", "folder", "circle"])

    def write(place: Place) -> None:
        path = place.here / "bad.png"
        if what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        else:
            path.symlink_to("bad.png" if what == "circle" else what)
        place.write("list.txt", "bad.png\n")
        place.copy("images")

    arguments = draw.choice(
        [["classify", "run", "bad.png"], ["classify", "run", "--input", "list.txt"], ["compare-attention", "run", "--input", "bad.png"]]
    )
    return Case(f"{arguments[0]}: {what} called bad.png", arguments, write, Refused(("bad.png",)))


@KINDS.add
def a_pipe_or_device_called_a_folder_of_images(draw: Draw) -> Case:
    what = draw.choice(["pipe", "/dev/zero", "file", "missing", "circle"])

    def write(place: Place) -> None:
        path = place.here / "images.zip"
        if what == "pipe":
            os.mkfifo(path)
        elif what == "file":
            path.write_bytes(draw.randbytes(1000))
        elif what != "missing":
            path.symlink_to("images.zip" if what == "circle" else what)
        place.copy("images")

    arguments = draw.choice([["train", "images", "--images", "images.zip", *TRAIN], ["classify", "run", "--labeled-data", "images.zip"]])
    return Case(f"{arguments[0]}: {what} called images.zip", arguments, write, Refused(("images.zip",)))
