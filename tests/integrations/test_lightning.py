"""The Lightning callback against the plain loop that it stands for."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="lightning is not installed")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl  # noqa: E402

from lapkernels.integrations import OnlineEvidenceCallback  # noqa: E402
from lapkernels.laplace import OnlineEvidence  # noqa: E402

OPTIONS: dict[str, Any] = {"every": 2, "burn_in": 2, "steps": 5, "method": "exact"}


def data() -> DataLoader[Any]:
    torch.manual_seed(1)
    x = torch.randn(24, 3, dtype=torch.float64)
    y = x.sum(1, keepdim=True).sin() + 0.1 * torch.randn(24, 1, dtype=torch.float64)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()


class Model(pl.LightningModule):
    def __init__(self, tuning: OnlineEvidenceCallback) -> None:
        super().__init__()
        self.network, self.tuning = network(), tuning

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return self.tuning.nll(self.network(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


def trainer(folder: Path, tuning: OnlineEvidenceCallback, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=5,
        accelerator="cpu",
        callbacks=[tuning],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


@pytest.mark.filterwarnings("ignore")
def test_as_the_plain_loop(tmp_path: Path) -> None:
    tuning = OnlineEvidenceCallback("regression", module="network", **OPTIONS)
    model, run = Model(tuning), trainer(tmp_path, tuning)
    run.fit(model, data())
    plain = network()
    online = OnlineEvidence(plain, "regression", **OPTIONS)
    optimizer = torch.optim.SGD(plain.parameters(), 0.05)
    for _ in range(5):
        for x, y in data():
            optimizer.zero_grad()
            online.loss(plain(x), y, 24).backward()
            optimizer.step()
        online.end_epoch(data())
    assert [epoch for epoch, _ in tuning.online.history] == [2, 4]
    torch.testing.assert_close(
        torch.tensor(tuning.online.history), torch.tensor(online.history), rtol=1e-9, atol=0
    )
    for a, b in zip(model.network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    last = torch.tensor(tuning.online.history[-1][1])
    torch.testing.assert_close(run.callback_metrics["log_evidence"].double(), last.double())
    assert tuning.online.laplace is not None and model.network.training


@pytest.mark.filterwarnings("ignore")
def test_refusals(tmp_path: Path) -> None:
    tuning = OnlineEvidenceCallback("regression", module="nothing")
    with pytest.raises(RuntimeError, match="training has not begun"):
        _ = tuning.online
    with pytest.raises(ValueError, match="module='nothing' is no module of Model"):
        trainer(tmp_path, tuning).fit(Model(tuning), data())


def test_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import lapkernels.integrations

    monkeypatch.delitem(sys.modules, "lapkernels.integrations.lightning")
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="OnlineEvidenceCallback needs lightning: pip install li"):
        _ = lapkernels.integrations.OnlineEvidenceCallback
