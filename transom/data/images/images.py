"""Images with a class each: found in folders and zip files, decoded with limits, brought to one size."""

import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor

from transom.errors import ConfigError, DataError
from transom.files.limits import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS
from transom.files.regular import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""What Pillow may try: the formats of these suffixes and no other."""

UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error, zlib.error)
"""What Pillow's readers raise on damaged files."""

KEPT_BYTES = 2**31
"""Most bytes of pixels that are kept in memory; what is more is read anew in each epoch."""


@dataclass(frozen=True)
class Files:
    """Where images are.

    Attributes:
        names: of the images, as CLASS/NAME.jpg, in their order as text.
        read: gives the bytes of one.
        place: of all of them, for people.
        n_ignored: files beside them that are no images by their suffix.
    """

    names: list[str]
    read: Callable[[str], bytes]
    place: str
    n_ignored: int


def list_images(path: Path) -> Files:
    """Find the images of a folder or a zip file; hidden files are passed over, and so are folders around all classes.

    Raises:
        DataError: there is no such folder or zip file, it is damaged, or it has no images.
    """
    if path.is_dir():
        found = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
        return _chosen(found, read_file, str(path))
    if not path.exists():
        raise DataError(f"{path}: expected a folder of images or a .zip of one, found nothing there")
    try:
        open_regular(path, DataError).close()
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path}: expected a folder of images or a .zip of one, found neither ({error})") from error
    members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
    return _chosen(members, lambda member: _read_member(archive, member, path), str(path))


def _chosen(found: dict[str, Any], read: Callable[[Any], bytes], place: str) -> Files:
    """Leave out what is hidden and what is no image, then the folders that all images share."""
    visible = [name for name in found if not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)]
    images = {name: PurePosixPath(name).parts for name in visible if PurePosixPath(name).suffix.lower() in SUFFIXES}
    if not images:
        raise DataError(f"{place}: expected images as CLASS/NAME.jpg, found none ({', '.join(SUFFIXES[:3])} and the like)")
    around = 0
    while all(len(parts) > around + 2 for parts in images.values()) and len({parts[around] for parts in images.values()}) == 1:
        around += 1
    short = {"/".join(parts[around:]): name for name, parts in images.items()}
    for name in short:
        if "/" not in name:
            raise DataError(f"{place}: expected each image in a folder that is named for its class, found {name} in none; put it into one")
        if re.search("[\ud800-\udfff]", label := name.split("/", 1)[0]):
            raise DataError(f"{place}: expected classes whose names are UTF-8, found {label!a}; rename the folder")
    return Files(sorted(short), lambda name: read(found[short[name]]), place, len(visible) - len(images))


def read_file(file: Path) -> bytes:
    """Read an image's file.

    Raises:
        DataError: it cannot be read, or is too large.
    """
    try:
        with open_regular(file, DataError) as opened:
            data = opened.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise DataError(f"{file}: expected an image, found a file that cannot be read: {error.strerror}") from error
    return _limited(data, str(file))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bytes:
    try:
        with archive.open(member) as opened:
            data = opened.read(MAX_IMAGE_BYTES + 1)
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError) as error:
        raise DataError(f"{path}: expected to read {member.filename}, found {error}; make the file anew") from error
    return _limited(data, f"{path}, {member.filename}")


def _limited(data: bytes, place: str) -> bytes:
    if len(data) > MAX_IMAGE_BYTES:
        raise DataError(f"{place}: expected an image of at most {MAX_IMAGE_BYTES:,} bytes, found more; make it smaller or remove it")
    return data


def decode(data: bytes, place: str, size: int, channels: int) -> NDArray[np.uint8]:
    """Decode an image and bring its middle square to a size; what is see-through is laid on white, and a camera's turn is undone.

    Args:
        data: the file.
        place: where it is, for people.
        size: wanted width and height.
        channels: 3 for colours, 1 for grey.

    Returns:
        Pixels (channels, size, size).

    Raises:
        DataError: it is no image, damaged, or too large.
    """
    library = pillow()
    mode = "L" if channels == 1 else "RGB"
    with warnings.catch_warnings():
        warnings.simplefilter("error", library.Image.DecompressionBombWarning)
        try:
            with library.Image.open(BytesIO(data), formats=FORMATS) as opened:
                if opened.width * opened.height > MAX_IMAGE_PIXELS:
                    raise DataError(_too_large(place, f"{opened.width:,} x {opened.height:,}"))
                opened.draft(mode, (size, size))  # a JPEG file can be read at a fraction of its size
                image = _plain(library.ImageOps.exif_transpose(opened), mode, library)
        except (library.Image.DecompressionBombError, library.Image.DecompressionBombWarning) as error:
            raise DataError(_too_large(place, "more")) from error
        except DataError:
            raise
        except UNREADABLE as error:
            why = str(error).partition(" <")[0]  # Pillow names the object that it reads from
            raise DataError(f"{place}: expected an image, found a file that cannot be read as one ({why}); mend or remove it") from error
    if image.size != (size, size):
        image = library.ImageOps.fit(image, (size, size), library.Image.Resampling.BICUBIC)
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _too_large(place: str, found: str) -> str:
    return f"{place}: expected an image of at most {MAX_IMAGE_PIXELS:,} pixels, found {found}; make it smaller or remove it"


def _plain(image: "Image", mode: str, library: Any) -> "Image":
    """Bring any image to grey or colours of 8 bits."""
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits a pixel, or numbers
        numbers = np.asarray(image, np.float64)
        white = 65535.0 if "16" in image.mode else max(float(numbers.max()), 255.0)
        image = library.Image.fromarray((numbers.clip(0) * (255 / white)).astype(np.uint8))
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        image = library.Image.alpha_composite(library.Image.new("RGBA", colours.size, "white"), colours)
    return image.convert(mode)


def pillow() -> Any:
    """Import Pillow.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise ConfigError("reading images needs Pillow: pip install 'transom[images]'") from None
    return PIL


@dataclass(frozen=True)
class Images:
    """Images, each with its class.

    Attributes:
        names: of the images, as CLASS/NAME.jpg.
        labels: class of each.
        digests: hash of each one's file, the same where the files are.
        name: where they come from, for people.
        n_ignored: files beside them that are no images by their suffix.
        load: gives the pixels of some, (images, channels, size, size), as uint8; of sounds their spectrograms, as float32.
    """

    names: list[str]
    labels: list[str]
    digests: list[str]
    name: str
    n_ignored: int
    load: Callable[[Sequence[int]], Shaped[Tensor, "images channels size size"]]

    def __len__(self) -> int:
        """Count the images."""
        return len(self.names)

    def place(self, sample: int) -> str:
        """Name an image, for people."""
        return f"{self.name}, {self.names[sample]}"

    def take(self, samples: list[int], name: str) -> "Images":
        """Give some of the images."""

        def chosen(values: list[str]) -> list[str]:
            return [values[i] for i in samples]

        def load(some: Sequence[int]) -> Shaped[Tensor, "images channels size size"]:
            return self.load([samples[i] for i in some])

        return Images(chosen(self.names), chosen(self.labels), chosen(self.digests), name, self.n_ignored, load)


def read_images(path: Path, size: int, channels: int) -> Images:
    """Read all images of a folder or a zip file, and keep their pixels in memory where these fit.

    All of them are decoded once, so that a damaged one is named at the start.

    Args:
        path: of CLASS/NAME.jpg.
        size: width and height to which they are brought.
        channels: 3 for colours, 1 for grey.

    Raises:
        DataError: an image cannot be read.
    """
    files = list_images(path)
    keep = len(files.names) * channels * size**2 <= KEPT_BYTES
    kept = np.empty((len(files.names) if keep else 1, channels, size, size), np.uint8)
    digests = []
    for number, name in enumerate(files.names):
        data = files.read(name)
        digests.append(blake2b(data, digest_size=16).hexdigest())
        kept[number if keep else 0] = decode(data, f"{files.place}, {name}", size, channels)
    pixels = torch.from_numpy(kept)

    def load(samples: Sequence[int]) -> UInt8[Tensor, "images channels size size"]:
        if keep:
            return pixels[list(samples)]
        names = [files.names[i] for i in samples]
        return torch.from_numpy(np.stack([decode(files.read(name), f"{files.place}, {name}", size, channels) for name in names]))

    labels = [name.split("/", 1)[0] for name in files.names]
    return Images(files.names, labels, digests, files.place, files.n_ignored, load)
