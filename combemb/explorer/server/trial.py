"""Decode a file in a process of its own, which may run out of memory, hang or crash.

`python trial.py FILE PIXELS BYTES FORMATS`

Prints the format, or exits with 1 and prints a reason. It imports Pillow alone, so that it starts in a tenth of a
second.
"""

import resource
import sys

from PIL import Image, UnidentifiedImageError

MAX_SECONDS = 20


def main(path: str, max_pixels: int, max_bytes: int, formats: list[str]) -> str:
    """Return the format of an image that can be decoded; raise an error if that takes too much.

    Only these formats are tried: Pillow would start other programs for some.
    """
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    Image.MAX_IMAGE_PIXELS = max_pixels
    with Image.open(path, formats=formats) as image:
        if image.width * image.height > max_pixels:
            raise ValueError(f"it has {image.width} x {image.height} pixels; at most {max_pixels:,} are allowed")
        image.load()
        return str(image.format)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")))
    except UnidentifiedImageError:  # its text has the name of the file
        print("not an image of a known format")
        sys.exit(1)
    except Image.DecompressionBombError:
        print(f"it has more than {int(sys.argv[2]):,} pixels")
        sys.exit(1)
    except Exception as failure:  # damaged files make Pillow raise nearly anything
        print(str(failure).splitlines()[0][:200] if str(failure) else type(failure).__name__)
        sys.exit(1)
