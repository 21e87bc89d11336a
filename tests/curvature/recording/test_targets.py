"""Labels among named inputs: how they become targets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.data.batches import batches_of
from lapkernels.curvature.recording.targets import with_targets
from lapkernels.likelihoods import Categorical

WORDS, LENGTH = 7, 4
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 1, 0], [2, 2, 5, 1]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]])


class Tagger(nn.Module):
    """Logits for each token, with a loss of labels ``shift`` positions further on."""

    config = None

    def __init__(self, shift: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shift, self.calls = shift, list[bool]()
        self.table, self.head = nn.Embedding(WORDS, 5), nn.Linear(5, WORDS)
        self.double()

    def forward(
        self, input_ids: Tensor, attention_mask: Any = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        logits = self.head(self.table(input_ids).cumsum(1).tanh())
        self.calls.append(labels is not None)
        if labels is None:
            return {"logits": logits}
        last = LENGTH - self.shift
        f, y = logits[:, :last].flatten(0, 1), labels[:, self.shift :].flatten()
        return {"loss": F.cross_entropy(f, y), "logits": logits}


def batch(**more: Tensor) -> dict[str, Tensor]:
    return {"input_ids": TOKENS, "labels": TOKENS.clone(), **more}


@pytest.mark.parametrize(
    ("shift", "more", "target"),
    [
        (0, {}, TOKENS),
        (1, {}, [[2, 3, 4, -100], [6, 1, 0, -100], [2, 5, 1, -100]]),
        (0, {"attention_mask": MASK}, [[1, 2, 3, 4], [5, 6, 1, -100], [-100, 2, 5, 1]]),
        # Neither what is predicted at padding nor padding that is predicted.
        (
            1,
            {"attention_mask": MASK},
            [[2, 3, 4, -100], [6, 1, -100, -100], [-100, 5, 1, -100]],
        ),
    ],
)
def test_labels_become_the_target(shift: int, more: dict[str, Tensor], target: Any) -> None:
    """The loss is asked once, without anything left on the model."""
    model = Tagger(shift)
    given = batch(**more)
    known = {name: value.clone() for name, value in given.items()}
    found, _ = with_targets(model, batches_of([given, given]))
    assert found.target.tolist() == torch.as_tensor(target).tolist()
    assert list(found.kwargs) == [name for name in given if name != "labels"]
    assert all(torch.equal(value, known[name]) for name, value in given.items())
    assert model.calls == [True]
    assert ("shifted" in found.note) == bool(shift)


@pytest.mark.parametrize("method", ["exact", "mc", "empirical", "approx", "hessian"])
def test_targets_are_those_of_labels_shifted_by_hand(method: Any) -> None:
    model, noise = Tagger(1), Categorical(dim=-1)
    y = torch.full_like(TOKENS, -100)
    y[:, :-1] = TOKENS[:, 1:].masked_fill((MASK[:, 1:] * MASK[:, :-1]) == 0, -100)
    options: dict[str, Any] = {"method": method}
    found, known = (
        lk.diag(model, data, noise, generator=torch.Generator().manual_seed(0), **options)
        for data in (batch(attention_mask=MASK), ({"input_ids": TOKENS}, y))
    )
    for name, value in known.items():
        torch.testing.assert_close(found[name], value)
        assert value.abs().sum() > 0


def test_products_and_laplace_take_the_same_targets() -> None:
    model, noise, given = Tagger(1), Categorical(dim=-1), batch(attention_mask=MASK)
    diagonal = lk.diag(model, given, noise)
    name, index = "head.bias", 2
    unit = {key: torch.zeros_like(p) for key, p in model.named_parameters()}
    unit[name][index] = 1
    product = lk.ggn_product(model, given, unit, noise)
    assert isinstance(product, dict)
    torch.testing.assert_close(product[name][index], diagonal[name][index])
    la = lk.Laplace(model, noise).fit([given])
    p = la.predict(given).probabilities
    assert p.shape == (3, LENGTH, WORDS)


def test_the_alignment_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lk.diag(Tagger(1), batch(), Categorical(dim=-1), explain=True)
    assert "output t predicts label t + 1; 9 of 12 positions count" in capsys.readouterr().out


def test_classes_of_tokens_are_last() -> None:
    for data in (batch(), ({"input_ids": TOKENS}, None), (TOKENS, None)):
        with pytest.raises(ValueError, match=r"Categorical\(dim=-1\)"):
            lk.diag(Tagger(0), data, "categorical", method="mc")


REFUSED: dict[str, tuple[nn.Module, Any, str]] = {
    "unshifted labels of an input without a name": (
        Tagger(1),
        (TOKENS, TOKENS),
        "put them into the dict",
    ),
    "unshifted labels beside the inputs": (
        Tagger(1),
        ({"input_ids": TOKENS}, TOKENS),
        "put them into the dict",
    ),
    "another loss": (Tagger(2), batch(), r"at position t and -100"),
    "labels twice": (Tagger(0), (batch(), TOKENS), "leave out one of the two"),
    "padding without labels": (
        Tagger(0),
        {"input_ids": TOKENS, "attention_mask": MASK},
        "padded.*-100",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_ambiguous_is_refused(name: str) -> None:
    model, data, message = REFUSED[name]
    with pytest.raises((ValueError, lk.Refused), match=message):
        lk.diag(model, data, Categorical(dim=-1))


def test_labels_that_a_model_needs_are_an_input() -> None:
    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 2)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return x * self.table(labels)

    x, labels = torch.randn(4, 2), torch.tensor([0, 1, 2, 1])
    found = lk.diag(Conditional(), {"x": x, "labels": labels})
    assert float(found["table.weight"].sum()) == pytest.approx(float(x.square().sum()))


def test_models_without_logits_say_what_they_return() -> None:
    class Hidden(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return {"last_hidden_state": super().forward(input), "cache": ()}

    with pytest.raises(TypeError, match="output=, one of last_hidden_state, cache"):
        lk.diag(Hidden(2, 2), torch.randn(3, 2))
