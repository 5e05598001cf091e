"""Write generated tokens for nanogpt_like.py: train.bin and val.bin, uint16.

python prepare_tokens.py --out data/tokens
"""

import argparse
from pathlib import Path

import numpy as np


def write_tokens(count: int, vocabulary: int, seed: int) -> np.ndarray:
    """Generate a text in which one of four words usually follows each word."""
    random = np.random.default_rng(seed)
    follows = random.integers(vocabulary, size=(vocabulary, 4))
    choice = random.integers(4, size=count)
    surprise = np.where(random.random(count) < 0.1, random.integers(vocabulary, size=count), -1)
    tokens = np.empty(count, dtype=np.uint16)
    word = 0
    for i in range(count):
        word = int(surprise[i]) if surprise[i] >= 0 else int(follows[word, choice[i]])
        tokens[i] = word
    return tokens


def main() -> None:
    """Write nine tenths of the tokens for training, the rest for validation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("data/tokens"))
    args = parser.parse_args()
    tokens = write_tokens(args.tokens, args.vocabulary, args.seed)
    split = len(tokens) * 9 // 10
    args.out.mkdir(parents=True, exist_ok=True)
    tokens[:split].tofile(args.out / "train.bin")
    tokens[split:].tofile(args.out / "val.bin")
    print(f"{split} tokens to train, {len(tokens) - split} to validate, in {args.out}")


if __name__ == "__main__":
    main()
