"""Draw a folder of images by class, as ImageFolder reads it, for image_folder.py.

python draw_images.py --out data/shapes
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 32


def draw(shape: str, random: np.random.Generator) -> Image.Image:
    """Draw one disc, square or cross in a random place, size and color on noise."""
    image = Image.fromarray(random.integers(0, 96, (SIDE, SIDE, 3), dtype=np.uint8))
    pen = ImageDraw.Draw(image)
    half = int(random.integers(5, 11))
    x, y = (int(place) for place in random.integers(half, SIDE - half, 2))
    color = tuple(int(part) for part in random.integers(128, 256, 3))
    box = (x - half, y - half, x + half, y + half)
    if shape == "disc":
        pen.ellipse(box, fill=color)
    elif shape == "square":
        pen.rectangle(box, fill=color)
    else:
        pen.line(box, fill=color, width=4)
        pen.line((x - half, y + half, x + half, y - half), fill=color, width=4)
    return image


def main() -> None:
    """Write train/ and val/, each with a folder of images for every class."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=400, help="of each class, a fifth of them in val/")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("data/shapes"))
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    for shape in ("cross", "disc", "square"):
        for split in ("train", "val"):
            (args.out / split / shape).mkdir(parents=True, exist_ok=True)
        for i in range(args.images):
            split = "val" if i % 5 == 0 else "train"
            draw(shape, random).save(args.out / split / shape / f"{i:04}.png")
    print(f"{3 * args.images} images in {args.out}")


if __name__ == "__main__":
    main()
