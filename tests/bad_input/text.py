"""Text that no command should read: not UTF-8, damaged gzip, endless, or no file at all."""

import gzip
import os
import zlib
from collections.abc import Callable

from tests.bad_input.case import Case, Draw, Kinds, Place, Refused

KINDS = Kinds()

TRAIN = ("--out", "out", "--set", "training.max_steps=1", "--set", "tokenizer.kind=char")
READERS: dict[str, Callable[[str], list[str]]] = {
    "train a translator": lambda name: ["train", "translation", "--source", name, "--target", "GOOD/data/pairs.target", *TRAIN],
    "train, as targets": lambda name: ["train", "translation", "--source", "GOOD/data/pairs.source", "--target", name, *TRAIN],
    "train, as validation": lambda name: [
        *("train", "text-pairs", "--source", "GOOD/data/pairs.source", "--target", "GOOD/data/pairs.target"),
        *("--valid-source", name, "--valid-target", name, *TRAIN),
    ],
    "train a language model": lambda name: ["train", "text-bpe", "--text", name, *TRAIN],
    "train by lines": lambda name: ["train", "text-masked", "--text", name, *TRAIN, "--set", "data.train.document=line"],
    "train a tokenizer": lambda name: ["tokenizer", "train", "text-bpe", "--text", name, "--out", "tokenizer.json"],
    "translate": lambda name: ["translate", "GOOD/translation", "--input", name],
    "evaluate": lambda name: ["evaluate", "GOOD/translation", "--source", "GOOD/data/few.source", "--target", name],
    "score pairs": lambda name: ["score", "GOOD/translation", "--source", name, "--target", "GOOD/data/few.target"],
    "score text": lambda name: ["score", "GOOD/language", "--text", name, "--json"],
    "generate": lambda name: ["generate", "GOOD/language", "--input", name],
    "fill": lambda name: ["fill", "GOOD/masked", "--input", name],
    "classify": lambda name: ["classify", "GOOD/classification", "--input", name],
    "embed": lambda name: ["embed", "GOOD/embedding", "--input", name, "--json"],
    "compare attention": lambda name: ["compare-attention", "GOOD/language", "--input", name],
}
"""How a file of text is read."""

OF_LINES = [name for name in READERS if name not in ("train a language model", "train a tokenizer", "score text", "compare attention")]
"""Readers that limit a line to 1 MiB, and do not take any text as one document."""


def read_by(draw: Draw, about: str, content: bytes, names: tuple[str, ...] = (), readers: list[str] | None = None) -> Case:
    """Have a file read by one of the commands."""
    name, reader = draw.choice(["bad.txt", "bad", "odd name.txt", "-bad.txt"]), draw.choice(readers or list(READERS))
    return Case(f"{reader}: {about}", READERS[reader](f"./{name}"), lambda place: place.write(name, content), Refused((name, *names)))


def lines(draw: Draw) -> list[bytes]:
    """Draw as many good lines as there are good pairs."""
    return [" ".join(draw.choices(["ab", "ba", "cab"], k=draw.randint(1, 5))).encode() for _ in range(60)]


def spoiled(draw: Draw, bad: bytes, about: str, names: tuple[str, ...]) -> Case:
    """Put bad bytes somewhere into a random line."""
    good = lines(draw)
    number = draw.randrange(len(good))
    at = draw.randrange(len(good[number]) + 1)
    good[number] = good[number][:at] + bad + good[number][at:]
    end = draw.choice([b"\n", b"\r\n"])
    return read_by(draw, f"{about} in line {number + 1}", end.join([*good, b""]), names)


@KINDS.add
def a_byte_that_utf8_never_has(draw: Draw) -> Case:
    bad = bytes([draw.choice([*range(0x80, 0xC0), 0xC0, 0xC1, *range(0xF5, 0x100)])])
    return spoiled(draw, bad, f"byte {bad!r}", ("UTF-8",))


@KINDS.add
def a_sequence_that_is_cut_short(draw: Draw) -> Case:
    return spoiled(draw, draw.choice([b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98"]) + b"a", "half a character", ("UTF-8",))


@KINDS.add
def an_overlong_sequence(draw: Draw) -> Case:
    return spoiled(draw, draw.choice([b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf"]), "overlong UTF-8", ("UTF-8",))


@KINDS.add
def half_a_surrogate_pair(draw: Draw) -> Case:
    return spoiled(draw, b"\xed" + bytes([draw.randrange(0xA0, 0xC0), draw.randrange(0x80, 0xC0)]), "an encoded surrogate", ("UTF-8",))


@KINDS.add
def beyond_unicode(draw: Draw) -> Case:
    return spoiled(draw, draw.choice([b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf"]), "a number above U+10FFFF", ("UTF-8",))


@KINDS.add
def a_nul_byte(draw: Draw) -> Case:
    return spoiled(draw, b"\0" * draw.randint(1, 3), "NUL", ("NUL",))


@KINDS.add
def a_lone_carriage_return(draw: Draw) -> Case:
    good = lines(draw)
    return read_by(draw, "a carriage return inside a line", b"a\rb\n" + b"\n".join(good), ("carriage return",))


@KINDS.add
def old_line_ends(draw: Draw) -> Case:
    return read_by(draw, "lines that end with a carriage return alone", b"\r".join(lines(draw)) + b"\r", ("carriage return",))


@KINDS.add
def utf16(draw: Draw) -> Case:
    encoding = draw.choice(["utf-16", "utf-16-le", "utf-16-be"])
    return read_by(draw, encoding, b"\n".join(lines(draw)).decode().encode(encoding), ("UTF-16",))


@KINDS.add
def utf32(draw: Draw) -> Case:
    return read_by(draw, "UTF-32", b"\n".join(lines(draw)).decode().encode("utf-32"), ("UTF-32",))


@KINDS.add
def another_encoding(draw: Draw) -> Case:
    encoding = draw.choice(["latin-1", "cp1252"])
    return read_by(draw, encoding, ("ab\n" * draw.randint(0, 50) + "caf\xe9 ab\n").encode(encoding), ("UTF-8",))


@KINDS.add
def random_bytes(draw: Draw) -> Case:
    return read_by(draw, "random bytes", b"ab\xff" + draw.randbytes(draw.randint(1, 100_000)))


@KINDS.add
def an_empty_file(draw: Draw) -> Case:
    readers = [
        "train a translator",
        "train, as targets",
        "train a language model",
        "translate",
        "evaluate",
        "score text",
        "generate",
        "fill",
    ]
    return read_by(draw, "an empty file", draw.choice([b"", b"\xef\xbb\xbf", gzip.compress(b"")]), (), readers)


@KINDS.add
def blank_lines_only(draw: Draw) -> Case:
    readers = ["train a translator", "train a language model", "train a tokenizer", "train by lines", "score text"]
    return read_by(draw, "nothing but blank lines", draw.choice([b"\n", b" \n", b"\t\n", b"\r\n"]) * 60, (), readers)


@KINDS.add
def a_line_without_end(draw: Draw) -> Case:
    size = draw.randint(2**20 + 1, 3 * 2**20)
    content = b"ab\n" * draw.randint(0, 9) + draw.choice([b"a", b"a ", b"\xc3\xa9"]) * size
    return read_by(draw, f"a line of at least {size:,} bytes", content, (), OF_LINES)


@KINDS.add
def other_numbers_of_lines(draw: Draw) -> Case:
    good = lines(draw)[: draw.choice([1, 30, 59])]
    readers = ["train a translator", "train, as targets", "evaluate", "score pairs"]
    return read_by(draw, f"{len(good)} lines beside others", b"\n".join(good) + draw.choice([b"", b"\n"]), (), readers)


@KINDS.add
def gzip_that_ends_too_early(draw: Draw) -> Case:
    packed = gzip.compress(b"\n".join(lines(draw)))
    return read_by(draw, "gzip, cut", packed[: draw.randrange(2, len(packed) - 1)])


@KINDS.add
def gzip_with_a_wrong_checksum(draw: Draw) -> Case:
    packed = gzip.compress(b"\n".join(lines(draw)))
    return read_by(draw, "gzip, its checksum or size changed", packed[:-8] + draw.flipped(packed[-8:]))


@KINDS.add
def gzip_with_damaged_data(draw: Draw) -> Case:
    packed = gzip.compress(draw.randbytes(300).hex().encode() + b"\n")
    return read_by(draw, "gzip, a bit changed", draw.flipped(packed[:-8], start=12) + packed[-8:])


@KINDS.add
def gzip_by_name_only(draw: Draw) -> Case:
    reader = draw.choice(list(READERS))
    content = b"\n".join(lines(draw))
    return Case(
        f"{reader}: a text called .gz", READERS[reader]("bad.txt.gz"), lambda p: p.write("bad.txt.gz", content), Refused(("bad.txt.gz",))
    )


@KINDS.add
def gzip_twice(draw: Draw) -> Case:
    return read_by(draw, "gzip in gzip", gzip.compress(gzip.compress(b"\n".join(lines(draw)))))


@KINDS.add
def gzip_bomb(draw: Draw) -> Case:
    """A few megabytes that unpack to gigabytes: of one line, of short lines, or of NUL."""
    piece = draw.choice([b"a" * 2**20, (b"ab " * 300 + b"\n") * 1100, b"\0" * 2**20, b"ab\n" * 2**19])
    size = draw.randint(3_000, 5_000) * 2**20

    def write(place: Place) -> None:
        squeezer = zlib.compressobj(9, wbits=31)
        packed = [squeezer.compress(piece * 4)]
        packed.append(squeezer.flush(zlib.Z_FULL_FLUSH))
        again = squeezer.compress(piece * 4) + squeezer.flush(zlib.Z_FULL_FLUSH)
        with place.write("bomb.gz", b"").open("wb") as file:
            file.writelines([*packed, *([again] * (size // len(piece * 4)))])

    reader = draw.choice(list(READERS))
    about = f"{reader}: gzip of {size:,} bytes, all like {piece[:4]!r}"
    return Case(about, READERS[reader]("bomb.gz"), write, Refused(("bomb.gz",)))


@KINDS.add
def no_such_file(draw: Draw) -> Case:
    name = draw.choice(
        ["missing", "missing/missing", "x" * 300, "./", "../here/missing", "~missing", "*", "\udcff", draw.odd_text().replace("\0", "")]
    )
    reader = draw.choice(
        [each for each in READERS if each not in ("score text", "train a language model", "train by lines", "train a tokenizer")]
    )
    return Case(f"{reader}: no file {name:.50}", READERS[reader](name))


@KINDS.add
def a_folder(draw: Draw) -> Case:
    reader = draw.choice([each for each in OF_LINES if each != "train by lines"])
    return Case(f"{reader}: a folder", READERS[reader]("folder"), lambda place: (place.here / "folder").mkdir(), Refused(("folder",)))


@KINDS.add
def a_device(draw: Draw) -> Case:
    device, reader = draw.choice(["/dev/zero", "/dev/urandom", "/dev/random", "/dev/full"]), draw.choice(list(READERS))
    return Case(f"{reader}: {device}", READERS[reader](device), expects=Refused((device,)))


@KINDS.add
def a_link_to_a_device(draw: Draw) -> Case:
    device, reader = draw.choice(["/dev/zero", "/dev/urandom"]), draw.choice(list(READERS))
    return Case(f"{reader}: a link to {device}", READERS[reader]("link.txt"), lambda place: (place.here / "link.txt").symlink_to(device))


@KINDS.add
def links_in_a_circle(draw: Draw) -> Case:
    def write(place: Place) -> None:
        (place.here / "a.txt").symlink_to("b.txt")
        (place.here / "b.txt").symlink_to("a.txt")

    reader = draw.choice(list(READERS))
    return Case(f"{reader}: links that lead to each other", READERS[reader]("a.txt"), write, Refused(("a.txt",)))


@KINDS.add
def a_folder_of_texts_with_a_bad_one(draw: Draw) -> Case:
    bad = draw.choice([b"\xff\n", b"a\0b", b"\x1f\x8b", b"a\rb\n"])
    depth = draw.choice([1, 3, 20])
    name = "/".join(["texts", *(draw.word(4) for _ in range(depth)), "bad.txt"])

    def write(place: Place) -> None:
        place.write("texts/good.txt", "ab\n")
        place.write(name, bad)

    reader = draw.choice(["train a language model", "train a tokenizer", "score text", "train by lines"])
    return Case(f"{reader}: a folder whose {name} holds {bad!r}", READERS[reader]("texts"), write, Refused(("bad.txt",)))


@KINDS.add
def a_folder_without_text(draw: Draw) -> Case:
    def write(place: Place) -> None:
        (place.here / "texts" / "empty").mkdir(parents=True)
        if draw.random() < 0.5:
            place.write("texts/.hidden", "ab\n")
            os.mkfifo(place.here / "texts" / "pipe.txt")

    reader = draw.choice(["train a language model", "train a tokenizer", "score text", "train by lines"])
    return Case(f"{reader}: a folder without files", READERS[reader]("texts"), write, Refused(("texts",)))


@KINDS.add
def bad_standard_input(draw: Draw) -> Case:
    content = draw.choice([b"ab\n\xff", b"a\0b\n", "ab".encode("utf-16"), b"a\rb", b"a" * (2**20 + 1), b"ab\n\xed\xa0\x80\n"])
    return Case(f"translate: {content[:20]!r} on standard input", ["translate", "GOOD/translation"], standard_input=content)


@KINDS.add
def a_bad_argument(draw: Draw) -> Case:
    bad = draw.choice(["ab\udcff", "\udc80", "a\ud800b"])
    command = draw.choice(
        [
            ["translate", "GOOD/translation", bad],
            ["generate", "GOOD/language", bad],
            ["fill", "GOOD/masked", f"{bad} [MASK]"],
            ["classify", "GOOD/classification", "ab", bad],
            ["embed", "GOOD/embedding", bad],
            ["compare-attention", "GOOD/language", "--text", bad],
            ["tokenizer", "show", "GOOD/language", bad],
        ]
    )
    return Case(f"{command[0]}: {bad!a} on the command line", command)
