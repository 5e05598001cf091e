"""Train a residual network on handwritten digits with Lightning.

python lightning_digits.py --devices 2 --batch-size 32 --out runs/lightning
"""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Block(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of the same shape."""
        return F.relu(x + self.layers(x))


class Digits(L.LightningDataModule):
    """Scikit-learn's 1,797 digits of 8x8 pixels, one in five of them for validation."""

    def __init__(self, batch_size: int, seed: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        images, labels = load_digits(return_X_y=True)
        images = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
        data = TensorDataset(images, torch.from_numpy(labels).long())
        self.train, self.val = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(seed))

    def train_dataloader(self) -> DataLoader:
        """Batches of one device; Lightning gives each device its own part."""
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        """Batches of validation."""
        return DataLoader(self.val, batch_size=128)


class Classifier(L.LightningModule):
    """A residual network for images of one channel and ten classes."""

    def __init__(self, width: int, blocks: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            *(Block(width) for _ in range(blocks)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 10),
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Loss of a batch."""
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Add a batch to loss and accuracy."""
        images, labels = batch
        logits = self.network(images)
        accuracy = (logits.argmax(1) == labels).float().mean()
        values = {"val_loss": F.cross_entropy(logits, labels), "accuracy": accuracy}
        self.log_dict(values, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Print what was validated."""
        if self.trainer.sanity_checking:
            return
        values = self.trainer.callback_metrics
        self.print(
            f"epoch {self.current_epoch} val_loss={values['val_loss']:.4f} accuracy={values['accuracy']:.3f}"
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def main() -> None:
    """Train for all epochs; Lightning saves the last checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1, help="of each node")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="images a step of each device")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="runs/lightning")
    args = parser.parse_args()

    L.seed_everything(args.seed, workers=True)
    trainer = L.Trainer(
        strategy="ddp",
        devices=args.devices,
        num_nodes=args.nodes,
        precision=args.precision,
        max_epochs=args.epochs,
        logger=CSVLogger(args.out),
        log_every_n_steps=10,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(args.width, args.blocks, args.lr), datamodule=Digits(args.batch_size, args.seed))


if __name__ == "__main__":
    main()
