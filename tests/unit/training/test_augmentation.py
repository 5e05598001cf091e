"""Crops and flips of a whole batch are those that torchvision makes one image at a time."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torchvision.transforms import v2

from scalewise.builtin.data.augmentation import Augmentation, Cropper

HEIGHT, WIDTH, BORDER = 3, 4, 1

Picture = tuple[int, ...]


@pytest.fixture
def image() -> torch.Tensor:
    """No two crops of it are alike."""
    return torch.arange(1, 2 * HEIGHT * WIDTH + 1, dtype=torch.uint8).view(2, HEIGHT, WIDTH)


def drawn(images: torch.Tensor, augmentation: Augmentation, seed: int = 0) -> torch.Tensor:
    """Each image once."""
    cropper = Cropper(images, augmentation)
    return cropper.draw(torch.arange(len(images)), torch.Generator().manual_seed(seed))


def counted(images: torch.Tensor) -> Counter[Picture]:
    return Counter(tuple(image.flatten().tolist()) for image in images)


def possible(image: torch.Tensor, augmentation: Augmentation) -> set[Picture]:
    """Every crop of the padded image, and its mirror image, written down without drawing."""
    border = augmentation.crop_padding
    padded = torch.zeros(2, HEIGHT + 2 * border, WIDTH + 2 * border, dtype=torch.uint8)
    padded[:, border : border + HEIGHT, border : border + WIDTH] = image
    crops = [
        padded[:, top : top + HEIGHT, left : left + WIDTH]
        for top in range(2 * border + 1)
        for left in range(2 * border + 1)
    ]
    if augmentation.horizontal_flip:
        crops += [crop.flip(2) for crop in crops]
    return {tuple(crop.flatten().tolist()) for crop in crops}


augmentations = pytest.mark.parametrize(
    "augmentation",
    [Augmentation(BORDER), Augmentation(horizontal_flip=True), Augmentation(BORDER, horizontal_flip=True)],
    ids=["crop", "flip", "crop and flip"],
)


@augmentations
def test_all_crops_and_flips_come_out_equally_often(image: torch.Tensor, augmentation: Augmentation) -> None:
    expected = possible(image, augmentation)
    number = 600 * len(expected)
    found = counted(drawn(image.expand(number, -1, -1, -1), augmentation))
    assert found.keys() == expected
    # 600 of each, give or take 6 standard deviations
    assert min(found.values()) > 450
    assert max(found.values()) < 750


@augmentations
def test_torchvision_draws_from_the_same_images(image: torch.Tensor, augmentation: Augmentation) -> None:
    transforms: list[v2.Transform] = []
    if augmentation.crop_padding:
        transforms.append(v2.RandomCrop((HEIGHT, WIDTH), padding=BORDER))
    if augmentation.horizontal_flip:
        transforms.append(v2.RandomHorizontalFlip())
    torch.manual_seed(0)
    transform = v2.Compose(transforms)
    expected = possible(image, augmentation)
    theirs = counted(torch.stack([transform(image) for _ in range(40 * len(expected))]))
    assert theirs.keys() == expected


def test_each_image_of_a_batch_has_a_crop_and_a_flip_of_its_own(image: torch.Tensor) -> None:
    batch = drawn(image.expand(64, -1, -1, -1), Augmentation(BORDER, horizontal_flip=True))
    assert len(counted(batch)) > 9


def test_channels_of_an_image_move_together(image: torch.Tensor) -> None:
    first, second = image.clone(), image.clone()
    first[1], second[1] = first[0], second[0]
    batch = drawn(torch.stack([first, second] * 20), Augmentation(BORDER, horizontal_flip=True))
    assert torch.equal(batch[:, 0], batch[:, 1])


def test_the_images_drawn_are_those_asked_for(image: torch.Tensor) -> None:
    images = torch.stack([image, image + 100, image + 200])
    cropper = Cropper(images, Augmentation(horizontal_flip=True))
    batch = cropper.draw(torch.tensor([2, 0, 2]), torch.Generator().manual_seed(0))
    for chosen, sample in zip(batch, (2, 0, 2), strict=True):
        assert tuple(chosen.flatten().tolist()) in possible(images[sample], Augmentation(0, True))


def test_equal_seeds_draw_equal_crops(image: torch.Tensor) -> None:
    images, augmentation = image.expand(50, -1, -1, -1), Augmentation(BORDER)
    assert torch.equal(drawn(images, augmentation, seed=3), drawn(images, augmentation, seed=3))
    assert not torch.equal(drawn(images, augmentation, seed=3), drawn(images, augmentation, seed=4))


def test_nothing_to_draw_is_known_beforehand() -> None:
    assert not Augmentation()
    assert Augmentation(crop_padding=1)
    assert Augmentation(horizontal_flip=True)
