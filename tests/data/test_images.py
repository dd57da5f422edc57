import os
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from combemb.data.images import BrokenImage, Images, _silence

CORNERS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)


def four_corners(width=48, height=32):
    """Red top left, green top right, blue bottom left, white bottom right."""
    colours = np.array(list(CORNERS.values()), dtype=np.uint8).reshape(2, 2, 3)
    return Image.fromarray(colours.repeat(height // 2, axis=0).repeat(width // 2, axis=1))


def corners(image):
    """The names of the colours in the four corners; JPEG moves them a little."""
    width, height = image.size
    seen = [image.getpixel((x, y)) for y in (0, height - 1) for x in (0, width - 1)]
    return [min(CORNERS, key=lambda name: np.abs(np.subtract(CORNERS[name], pixel)).sum()) for pixel in seen]


def read(path, at_least=0):
    return Images(files=[path]).read(0, at_least)


def photo(width=200, height=150):
    noise = np.random.default_rng(1).integers(0, 256, (height // 5, width // 5, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


def png_chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_header(width, height):
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


# reading what is whole


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, ["red", "green", "blue", "white"]),
        (2, ["green", "red", "white", "blue"]),
        (3, ["white", "blue", "green", "red"]),
        (4, ["blue", "white", "red", "green"]),
        (5, ["red", "blue", "green", "white"]),
        (6, ["blue", "red", "white", "green"]),
        (7, ["white", "green", "blue", "red"]),
        (8, ["green", "white", "red", "blue"]),
    ],
)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_images_come_upright(tmp_path, orientation, expected, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    four_corners().save(tmp_path / f"image{suffix}", exif=exif)
    image = read(tmp_path / f"image{suffix}")
    assert corners(image) == expected
    assert image.size == ((48, 32) if orientation < 5 else (32, 48))


def grey_half():
    return Image.fromarray(np.array([[0, 100], [200, 255]], dtype=np.uint8))


def with_transparency(image):
    image.info["transparency"] = 0
    return image


def palette_with_alpha():
    """Index 0 red and clear, 1 red and half clear, 2 red."""
    image = Image.fromarray(np.array([[0, 1], [2, 2]], dtype=np.uint8), mode=None).convert("P")
    image.putdata([0, 1, 2, 2])
    image.putpalette([255, 0, 0] * 3)
    image.info["transparency"] = bytes([0, 128, 255])
    return image


def of(values, dtype):
    return Image.fromarray(np.array(values, dtype=dtype))


GREY = [[(0,) * 3, (100,) * 3], [(200,) * 3, (255,) * 3]]
WHITE, RED, PINK = (255, 255, 255), (255, 0, 0), (255, 127, 127)


@pytest.mark.parametrize(
    ("image", "suffix", "expected"),
    [
        (grey_half(), ".png", GREY),
        (grey_half().convert("LA"), ".png", GREY),
        (with_transparency(grey_half()), ".png", [[WHITE, (100,) * 3], [(200,) * 3, WHITE]]),
        (grey_half().convert("1"), ".png", None),
        (
            of([[[255, 0, 0, 0], [255, 0, 0, 128]], [[255, 0, 0, 255]] * 2], np.uint8),
            ".png",
            [[WHITE, PINK], [RED] * 2],
        ),
        (
            of([[[255, 0, 0, 0], [255, 0, 0, 128]], [[255, 0, 0, 255]] * 2], np.uint8),
            ".tif",
            [[WHITE, PINK], [RED] * 2],
        ),
        (
            of([[[9, 0], [0, 255]], [[0, 128], [50, 255]]], np.uint8),
            ".png",
            [[WHITE, (0,) * 3], [(127,) * 3, (50,) * 3]],
        ),
        (palette_with_alpha(), ".png", [[WHITE, PINK], [RED] * 2]),
        (of([[0, 100 * 257], [200 * 256, 65535]], np.uint16), ".png", GREY),
        (of([[0, 100 * 257], [200 * 256, 65535]], np.uint16), ".tif", GREY),
        (of([[0, 100 * 257], [200 * 256, 65535]], np.int32), ".tif", GREY),
        (of([[0, 100 * 16], [200 * 16, 4095]], np.uint16), ".png", GREY),  # 12 bits of a camera
        (of([[0, 100], [200, 255]], np.uint16), ".png", GREY),
        (of([[0, 100], [200, 255]], np.int32), ".tif", GREY),
        (of([[-10, 990], [1990, 2540]], np.int32), ".tif", GREY),
        (of([[0, 100 / 255], [200 / 255, 1]], np.float32), ".tif", GREY),
        (of([[7, 7], [7, 7]], np.float32), ".tif", [[(0,) * 3] * 2] * 2),
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), ".tif", [[RED] * 2] * 2),
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), ".jpg", [[RED] * 2] * 2),
        (Image.new("RGB", (2, 2), RED).convert("YCbCr"), ".tif", [[(254, 0, 0)] * 2] * 2),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_every_kind_of_pixel_becomes_rgb(tmp_path, image, suffix, expected):
    path = tmp_path / f"image{suffix}"
    image.save(path)
    found = read(path)
    assert found.mode == "RGB"
    assert "transparency" not in found.info
    if expected is None:
        expected = image.convert("RGB")
    np.testing.assert_allclose(np.asarray(found).astype(int), np.asarray(expected), atol=1 if suffix == ".jpg" else 0)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp", ".tif"])
def test_of_an_animation_the_first_frame_is_read(tmp_path, suffix):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / f"image{suffix}", save_all=True, append_images=frames[1:])
    pixel = read(tmp_path / f"image{suffix}").getpixel((4, 4))
    assert np.abs(np.subtract(pixel, RED)).max() <= 3  # WebP is lossy


def test_the_content_decides_and_not_the_suffix(tmp_path):
    four_corners().save(tmp_path / "image.jpg", format="PNG")
    assert corners(read(tmp_path / "image.jpg")) == list(CORNERS)


@pytest.mark.parametrize(
    ("at_least", "size"),
    [
        (0, (200, 150)),
        (151, (200, 150)),
        (76, (200, 150)),
        (75, (100, 75)),
        (37, (50, 38)),
        (18, (25, 19)),
        (1, (25, 19)),
    ],
)
def test_the_decoder_shrinks_jpegs_while_both_sides_are_long_enough(tmp_path, at_least, size):
    for suffix in (".jpg", ".png"):
        four_corners(200, 150).save(tmp_path / f"image{suffix}")
    small, full = read(tmp_path / "image.jpg", at_least), read(tmp_path / "image.png", at_least)
    assert small.size == size
    assert full.size == (200, 150)
    assert corners(small) == list(CORNERS)


def test_a_turned_jpeg_shrinks_too(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    four_corners(480, 320).save(tmp_path / "image.jpg", exif=exif)
    image = read(tmp_path / "image.jpg", 80)
    assert image.size == (80, 120)
    assert corners(image) == ["blue", "red", "white", "green"]


def test_arrays_are_read_as_they_are(tmp_path):
    np.save(tmp_path / "pixels.npy", PIXELS)
    for pixels in (PIXELS, np.load(tmp_path / "pixels.npy", mmap_mode="r"), np.asfortranarray(PIXELS)):
        images = Images(pixels=pixels)
        assert len(images) == 5
        for i in (0, 4, -1):
            image = images.read(i, at_least=1)
            assert image.mode == "RGB"
            np.testing.assert_array_equal(np.asarray(image), PIXELS[i])


def test_an_image_read_from_an_array_is_a_copy():
    pixels = PIXELS.copy()
    Images(pixels=pixels).read(0).paste((1, 2, 3), (0, 0, 6, 4))
    np.testing.assert_array_equal(pixels, PIXELS)


# what is broken


def broken_files(folder):
    """Name -> a pattern of the reason; the files are written into the folder."""
    jpeg, png, gif, webp = (folder / f"whole{suffix}" for suffix in (".jpg", ".png", ".gif", ".webp"))
    for path in (jpeg, png, gif, webp):
        photo().save(path)
    photo().save(folder / "whole_progressive.jpg", progressive=True)
    progressive = (folder / "whole_progressive.jpg").read_bytes()
    changed = bytearray(png.read_bytes())
    changed[len(changed) // 2] ^= 255
    contents = {
        "truncated.jpg": (jpeg.read_bytes()[:-500], "truncated"),
        "truncated_progressive.jpg": (progressive[:-500], "truncated"),
        "only_a_header.jpg": (jpeg.read_bytes()[:100], "."),
        "truncated.png": (png.read_bytes()[:-500], "truncated"),
        "only_a_header.png": (png_header(10, 10), "."),
        "changed_byte.png": (bytes(changed), "unrecognized data|broken"),
        "truncated.gif": (gif.read_bytes()[:-500], "."),
        "truncated.webp": (webp.read_bytes()[:-500], "."),
        "empty.jpg": (b"", "^zero bytes$"),
        "text.jpg": (b"this is no image\n" * 50, "^not an image of a known format$"),
        "page.jpg": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "^not an image of a known format$"),
        "script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "^not an image of a known"),
        "bomb.png": (png_header(60_000, 60_000) + png_chunk(b"IEND", b""), "^too many pixels: .*3600000000"),
        "nothing_wide.png": (png_header(0, 10), "."),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "dangling.jpg").symlink_to(folder / "gone.jpg")
    of([[np.nan, 1.0]], np.float32).save(folder / "nan.tif")
    others = {"missing.jpg": "^no such file$", "folder.jpg": "^not a file$", "pipe.jpg": "^not a file$"}
    others |= {"dangling.jpg": "^no such file$", "nan.tif": "NaN or infinity"}
    return {name: reason for name, (_, reason) in contents.items()} | others


@pytest.mark.parametrize("at_least", [0, 20])
def test_what_cannot_be_decoded_whole_is_broken_and_says_why(tmp_path, at_least):
    for name, reason in broken_files(tmp_path).items():
        with pytest.raises(BrokenImage, match=reason) as caught:
            read(tmp_path / name, at_least)
        assert 0 < len(str(caught.value)) < 200, name
        assert str(tmp_path) not in str(caught.value), name


def test_a_large_image_is_read_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow warns above it and refuses above twice as many
    four_corners(48, 32).save(tmp_path / "image.png")
    assert read(tmp_path / "image.png").size == (48, 32)
    four_corners(48, 42).save(tmp_path / "image.png")
    with pytest.raises(BrokenImage, match="too many pixels"):
        read(tmp_path / "image.png")


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x05\x00\x0f\x01\x02\x00\xff\xff\x00\x00",  # promises what is not there
        b"Exif\x00\x00no TIFF header",
    ],
)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_damaged_metadata_neither_warn_nor_break(tmp_path, exif, suffix):
    four_corners().save(tmp_path / f"image{suffix}", exif=exif)
    assert corners(read(tmp_path / f"image{suffix}")) == list(CORNERS)


def test_warnings_stay_silent_until_the_last_reader_leaves():
    before = list(warnings.filters)
    first, second = _silence(), _silence()
    for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):
        step()
        warnings.warn("not heard", stacklevel=1)
    second.__exit__(None, None, None)
    assert warnings.filters == before
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_threads_leave_the_warning_filters_as_they_were(tmp_path):
    photo().save(tmp_path / "image.jpg")
    images, before = Images(files=[tmp_path / "image.jpg"]), list(warnings.filters)
    threads = [threading.Thread(target=lambda: [images.read(0) for _ in range(30)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
