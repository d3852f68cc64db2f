"""Listing, decoding and resizing of labeled images in folders or zip files."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int32, UInt8
from numpy.typing import NDArray
from torch import Tensor

from transom.data.images import layouts
from transom.data.images.layouts import label_images, split_folders
from transom.data.labeled.damaged_files import report_damaged
from transom.errors import ConfigError, DataError, UnreadableFileError
from transom.files.limits import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS
from transom.files.message import phrase
from transom.files.regular_files import open_regular_file

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats that Pillow may decode, which are those of ``SUFFIXES``."""

DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error, zlib.error)
"""Exceptions that Pillow raises when it decodes damaged files."""

MAX_CACHED_BYTES = 2**31
"""Maximum number of bytes of decoded pixels that are kept in memory.

The images of a larger data set are decoded again in each epoch.
"""


@dataclass(frozen=True)
class ImageListing:
    """Image files in a folder or zip file, or in one of its split folders.

    Attributes:
        names: paths of the images, such as CLASS/NAME.jpg, sorted.
        labels: class of each image.
        read: a function that returns the bytes of the image with a given name.
        origin: the folder or zip file, for messages.
        n_ignored: number of visible files that are ignored because their suffix is not that of an image.
        notes: messages about what was recognized in the layout of the folder.
    """

    names: list[str]
    labels: list[str]
    read: Callable[[str], bytes]
    origin: str
    n_ignored: int
    notes: tuple[str, ...] = ()


def list_images(path: Path, split: str | None = None) -> ImageListing:
    """List the images of a folder or zip file and find their classes.

    Hidden files are skipped. Outer folders that contain all class folders are ignored.

    Args:
        path: a folder or zip file with a layout that ``layouts.label_images`` recognizes.
        split: name of the split to list ("train", "valid" or "test") if the folder has split folders. Ignored for other folders.

    Raises:
        DataError: the folder or zip file does not exist, is damaged or contains no images, some images have no class, or the folder has
            split folders and ``split`` is None.
    """
    files = _find_files(path)
    folders = split_folders(list(files.images))
    if folders and split is None:
        found = " and ".join(sorted(folders.values()))
        raise DataError(
            f"{path}: expected class folders, found the split folders {found}; give one of them, such as {path / found.split()[0]}"
        )
    prefix = f"{folders[split]}/" if folders and split is not None else ""
    images = {name.removeprefix(prefix): member for name, member in files.images.items() if name.startswith(prefix)}
    tables = {} if folders else {name: member for name, member in files.others.items() if _is_table(name, member)}
    names, labels, notes, table = label_images(list(images), str(path), tables)
    if bad := next((label for label in labels if re.search("[\ud800-\udfff]", label)), None):
        raise DataError(f"{path}: expected classes whose names are UTF-8, found {bad!a}; rename the folder")
    n_ignored = len(files.others) - (table is not None)
    origin = f"{path}/{folders[split]}" if folders and split is not None else str(path)
    return ImageListing(names, labels, lambda name: files.read(images[name]), origin, n_ignored, notes)


def list_splits(path: Path) -> list[str]:
    """Return the names of the splits ("train", "valid", "test") for which a folder or zip file has a split folder.

    Raises:
        DataError: the folder or zip file does not exist, is damaged, or contains no images.
    """
    return list(split_folders(list(_find_files(path).images)))


class _Files(NamedTuple):
    """Visible files of a folder or zip file.

    Attributes:
        images: image files by path, without the parent folders that all images share.
        others: other files by path.
        read: a function that returns the bytes of a file.
    """

    images: dict[str, Any]
    others: dict[str, Any]
    read: Callable[[Any], bytes]


def _find_files(path: Path) -> _Files:
    if path.is_dir():
        return _select_images({file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}, read_file, str(path))
    if not path.exists():
        raise DataError(f"{path}: expected a folder of images or a .zip of one, found nothing there; check the path")
    try:
        open_regular_file(path, DataError).close()
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path}: expected a folder of images or a .zip of one, found another file ({error}); give another path") from error
    members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
    return _select_images(members, lambda member: _read_member(archive, member, path), str(path))


def _select_images(found: dict[str, Any], read: Callable[[Any], bytes], origin: str) -> _Files:
    """Separate visible image files from other visible files, and strip the parent folders that all images share."""
    visible = [name for name in found if not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)]
    images = {name: PurePosixPath(name).parts for name in visible if PurePosixPath(name).suffix.lower() in SUFFIXES}
    if not images:
        raise DataError(
            f"{origin}: expected images as CLASS/NAME.jpg, found none with a suffix such as {', '.join(SUFFIXES[:3])}; give another folder"
        )
    n_shared = 0
    while (
        all(len(parts) > n_shared + 2 for parts in images.values())
        and len({parts[n_shared] for parts in images.values()}) == 1
        and next(iter(images.values()))[n_shared].casefold() not in layouts.SPLITS
    ):
        n_shared += 1
    short = {"/".join(parts[n_shared:]): found[name] for name, parts in images.items()}
    return _Files(short, {name: found[name] for name in visible if name not in images}, read)


def _is_table(name: str, member: Any) -> bool:
    return isinstance(member, Path) and PurePosixPath(name).suffix.lower() in (".csv", ".tsv", ".jsonl")


def read_file(file: Path) -> bytes:
    """Read the bytes of an image file.

    Raises:
        UnreadableFileError: the file cannot be read or is too large.
    """
    try:
        with open_regular_file(file, UnreadableFileError) as opened:
            data = opened.read(MAX_IMAGE_BYTES + 1)
    except FileNotFoundError as error:
        raise UnreadableFileError(f"{file}: expected an image, found no such file; check the path", str(error.strerror)) from error
    except OSError as error:
        message = f"{file}: expected an image, found a file that cannot be read: {error.strerror}; check its permissions"
        raise UnreadableFileError(message, str(error.strerror)) from error
    return _check_size(data, str(file))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bytes:
    try:
        with archive.open(member) as opened:
            data = opened.read(MAX_IMAGE_BYTES + 1)
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError) as error:
        message = f"{path}: expected to read {member.filename}, found {error}; create the zip file again"
        raise UnreadableFileError(message, str(error)) from error
    return _check_size(data, f"{path}, {member.filename}")


def _check_size(data: bytes, origin: str) -> bytes:
    if len(data) > MAX_IMAGE_BYTES:
        raise UnreadableFileError(
            phrase(
                "errors.image_bytes",
                "{file}: expected an image of at most {most} bytes, found more; shrink or remove it",
                file=origin,
                most=MAX_IMAGE_BYTES,
            ),
            f"more than {MAX_IMAGE_BYTES:,} bytes",
        )
    return data


def decode_image(data: bytes, origin: str, size: int, channels: int) -> NDArray[np.uint8]:
    """Decode an image as ``decode_sized_image`` does, and return its pixels of shape (channels, size, size)."""
    return decode_sized_image(data, origin, size, channels).pixels


class DecodedImage(NamedTuple):
    """Pixels of an image.

    Attributes:
        pixels: pixels of shape (channels, size, size).
        width: width of the image before it was cropped and resized, in pixels.
        height: height of the image before it was cropped and resized, in pixels.
    """

    pixels: NDArray[np.uint8]
    width: int
    height: int


def decode_sized_image(data: bytes, origin: str, size: int, channels: int) -> DecodedImage:
    """Decode an image, crop it to its center square and resize the square.

    Transparent images are blended with white, and the EXIF orientation is applied.

    Args:
        data: content of the image file.
        origin: name of the file, for messages.
        size: width and height of the result in pixels.
        channels: 3 for RGB, 1 for grayscale.

    Raises:
        UnreadableFileError: the file is not an image, is damaged, or has too many pixels.
        ConfigError: Pillow is not installed.
    """
    library = import_pillow()
    mode = "L" if channels == 1 else "RGB"
    with warnings.catch_warnings():
        warnings.simplefilter("error", library.Image.DecompressionBombWarning)
        try:
            with library.Image.open(BytesIO(data), formats=PILLOW_FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_IMAGE_PIXELS:
                    raise _too_large(origin, f"{width:,} x {height:,}")
                opened.draft(mode, (size, size))  # JPEG can be decoded at a fraction of its size
                drafted = opened.size
                image = _to_8_bit(library.ImageOps.exif_transpose(opened), mode, library)
        except (library.Image.DecompressionBombError, library.Image.DecompressionBombWarning) as error:
            raise _too_large(origin, phrase("errors.more", "more")) from error
        except DataError:
            raise
        except DECODE_ERRORS as error:
            why = str(error).partition(" <")[0]  # Pillow appends the repr of the stream
            raise UnreadableFileError(
                phrase(
                    "errors.image",
                    "{file}: expected an image, found a file that cannot be decoded ({why}); repair or remove it",
                    file=origin,
                    why=why,
                ),
                why,
            ) from error
    if image.size != drafted:  # turned by 90 degrees
        width, height = height, width
    if image.size != (size, size):
        image = library.ImageOps.fit(image, (size, size), library.Image.Resampling.BICUBIC)
    pixels = np.asarray(image, np.uint8)
    return DecodedImage(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1), width, height)


def _too_large(origin: str, found: str) -> UnreadableFileError:
    return UnreadableFileError(
        phrase(
            "errors.image_pixels",
            "{file}: expected an image of at most {most} pixels, found {found}; shrink or remove it",
            file=origin,
            most=MAX_IMAGE_PIXELS,
            found=found,
        ),
        f"more than {MAX_IMAGE_PIXELS:,} pixels",
    )


def _to_8_bit(image: "Image", mode: str, library: Any) -> "Image":
    """Convert an image of any mode to 8-bit grayscale (mode "L") or RGB, and blend transparency with white."""
    if image.mode.startswith("I") or image.mode == "F":  # 16-bit or 32-bit pixels
        numbers = np.asarray(image, np.float64)
        white = 65535.0 if "16" in image.mode else max(float(numbers.max()), 255.0)
        image = library.Image.fromarray((numbers.clip(0) * (255 / white)).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = library.Image.alpha_composite(library.Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert(mode)


def import_pillow() -> Any:
    """Import and return Pillow, an optional dependency.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise ConfigError("reading images requires Pillow: pip install 'transom[images]'") from None
    return PIL


@dataclass(frozen=True)
class Images:
    """Data set of labeled images.

    Attributes:
        names: paths of the images, such as CLASS/NAME.jpg.
        labels: class of each image.
        digests: hash of the content of each image file, by which equal images are recognized.
        name: origin of the images, for messages.
        n_ignored: number of files that are ignored because their suffix is not that of an image.
        load: a function that returns the 8-bit pixels of the images at given indices, of shape (images, channels, size, size).
        notes: messages about what was recognized in the layout of the folder, and about files that were skipped.
        sizes: width and height of each image before it was cropped and resized, in pixels; None for data that are no images.
    """

    names: list[str]
    labels: list[str]
    digests: list[str]
    name: str
    n_ignored: int
    load: Callable[[Sequence[int]], UInt8[Tensor, "images channels size size"]]
    notes: tuple[str, ...] = ()
    sizes: Int32[np.ndarray, "images 2"] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def describe_sample(self, sample: int) -> str:
        """Return the origin and the name of an image as text, for messages."""
        return f"{self.name}, {self.names[sample]}"

    def select(self, samples: list[int], name: str) -> "Images":
        """Return the images at the given indices as a data set with the given name."""

        def chosen(values: list[str]) -> list[str]:
            return [values[i] for i in samples]

        def load(some: Sequence[int]) -> UInt8[Tensor, "images channels size size"]:
            return self.load([samples[i] for i in some])

        notes, sizes = self.notes if name == self.name else (), None if self.sizes is None else self.sizes[samples]
        return Images(chosen(self.names), chosen(self.labels), chosen(self.digests), name, self.n_ignored, load, notes, sizes)


def read_images(path: Path, size: int, channels: int, split: str | None = None, skip_damaged: bool | None = None) -> Images:
    """Read all images of a folder or zip file.

    Each image is decoded once, so that damaged files are reported before training starts. The pixels are kept in memory unless they exceed
    ``MAX_CACHED_BYTES``.

    Args:
        path: a folder or zip file; see ``list_images``.
        size: width and height in pixels to which images are resized.
        channels: 3 for RGB, 1 for grayscale.
        split: name of the split to read if the folder has split folders; see ``list_images``.
        skip_damaged: whether damaged images are skipped. None refuses them without naming the option that skips them.

    Raises:
        DataError: the images cannot be listed, some are damaged and ``skip_damaged`` is not set, or all images of a class are damaged.
        ConfigError: Pillow is not installed.
    """
    files = list_images(path, split)
    keep = len(files.names) * channels * size**2 <= MAX_CACHED_BYTES
    kept = np.empty((len(files.names) if keep else 1, channels, size, size), np.uint8)
    sizes, readable, digests, damaged = np.empty((len(files.names), 2), np.int32), list[int](), list[str](), dict[str, str]()
    for number, name in enumerate(files.names):
        try:
            data = files.read(name)
            image = decode_sized_image(data, f"{files.origin}, {name}", size, channels)
        except UnreadableFileError as error:
            damaged[name] = error.reason
            continue
        kept[len(readable) if keep else 0], sizes[len(readable)] = image.pixels, (image.width, image.height)
        readable.append(number)
        digests.append(blake2b(data, digest_size=16).hexdigest())
    notes = files.notes + report_damaged(damaged, files.names, files.labels, files.origin, "image", skip_damaged)
    names, labels = ([values[i] for i in readable] for values in (files.names, files.labels))
    cached = torch.from_numpy(kept)

    def load(samples: Sequence[int]) -> UInt8[Tensor, "images channels size size"]:
        if keep:
            return cached[list(samples)]
        chosen = [names[i] for i in samples]
        return torch.from_numpy(np.stack([decode_image(files.read(name), f"{files.origin}, {name}", size, channels) for name in chosen]))

    return Images(names, labels, digests, files.origin, files.n_ignored, load, notes, sizes[: len(names)])
