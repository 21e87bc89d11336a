"""Models of Hugging Face as they come, at full batch, and batches of their collators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.likelihoods import Categorical, Likelihood, resolve
from tests.curvature import check, oracle

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS, LENGTH, VOCABULARY = {"vocab_size": 20, "pad_token_id": 0}, 4, 20
SPECIAL = {**TOKENS, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {**SIZES, **SPECIAL, "num_key_value_heads": 2, "head_dim": 4}
GPT2 = {**SPECIAL, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8}
ENCODER = {**SIZES, **SPECIAL, "max_position_embeddings": 8}
NARROW = {**ENCODER, "embedding_size": 8}
RELATIVE = {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DISTILLED = {**TOKENS, "dim": 16, "hidden_dim": 12, "n_layers": 2, "n_heads": 4}
T5 = {**TOKENS, "d_model": 16, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 4}
T5 |= {"eos_token_id": 2, "decoder_start_token_id": 0}
IMAGES = {**SIZES, "image_size": 8, "patch_size": 4}
WHISPER = {**SPECIAL, "d_model": 16, "num_mel_bins": 6, "max_source_positions": 4}
WHISPER |= {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 12}
WHISPER |= {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 12}
WHISPER |= {"classifier_proj_size": 8, "decoder_start_token_id": 1}

# Those that compute norms in float32, whatever their parameters are. A single score p - t is a
# difference, so that its rounding errors are larger.
SINGLE, CANCELLED = 1e-6, 10


def tokens(padded: bool = True) -> dict[str, Tensor]:
    found = torch.randint(3, VOCABULARY, (3, LENGTH))
    if not padded:
        return {"input_ids": found}
    mask = (torch.arange(LENGTH) < torch.tensor([[2], [4], [3]])).long()
    return {"input_ids": found * mask, "attention_mask": mask}


def typed() -> dict[str, Tensor]:
    """With the types that a tokenizer of pairs of sentences gives."""
    found = tokens()
    return {**found, "token_type_ids": found["attention_mask"].cumsum(1) // 3}


def pair() -> dict[str, Tensor]:
    return {**tokens(), "decoder_input_ids": torch.randint(3, VOCABULARY, (3, 3))}


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 8, 8, dtype=torch.float64)}


def sounds() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 6, 8, dtype=torch.float64)}


@dataclass(frozen=True)
class Row:
    """A model by the name of its class and of its configuration."""

    model: str
    config: str
    options: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]] = tokens
    output: str | None = None
    tolerance: float = 1e-9


def _both(name: str, options: dict[str, Any], tolerance: float = 1e-9) -> dict[str, Row]:
    """A decoder as a classifier of sequences and as a language model."""
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    classifier = f"{name}ForSequenceClassification"
    return {
        name: Row(classifier, name, options, tolerance=tolerance),
        f"{name}-unpadded": Row(classifier, name, options, lambda: tokens(False), None, tolerance),
        f"{name}-lm": Row(head, name, options, tolerance=tolerance),
    }


ROWS: dict[str, Row] = {
    **_both("GPT2", GPT2),
    **_both("Llama", GROUPED, SINGLE),
    "Llama-tied-lm": Row(
        "LlamaForCausalLM", "Llama", {**GROUPED, "tie_word_embeddings": True}, tolerance=SINGLE
    ),
    **_both("Qwen2", GROUPED, SINGLE),
    **_both("Gemma", GROUPED, SINGLE),
    **_both("Mistral", {**GROUPED, "sliding_window": 3}, SINGLE),
    "T5-encoder": Row("T5EncoderModel", "T5", T5, output="last_hidden_state", tolerance=SINGLE),
    "T5": Row("T5ForConditionalGeneration", "T5", T5, pair, tolerance=SINGLE),
    "BERT": Row("BertForSequenceClassification", "Bert", ENCODER, typed),
    "BERT-untyped": Row("BertForSequenceClassification", "Bert", ENCODER),
    "BERT-masked": Row("BertForMaskedLM", "Bert", ENCODER, typed),
    "BERT-tokens": Row("BertForTokenClassification", "Bert", ENCODER, typed),
    "RoBERTa": Row("RobertaForSequenceClassification", "Roberta", ENCODER),
    "DistilBERT": Row("DistilBertForSequenceClassification", "DistilBert", DISTILLED),
    "ALBERT": Row("AlbertForSequenceClassification", "Albert", NARROW, typed),
    "ELECTRA": Row("ElectraForSequenceClassification", "Electra", NARROW, typed),
    "DeBERTa": Row(
        "DebertaForSequenceClassification", "Deberta", RELATIVE, tolerance=SINGLE
    ),
    "DeBERTa-v2": Row("DebertaV2ForSequenceClassification", "DebertaV2", RELATIVE),
    "ViT": Row("ViTForImageClassification", "ViT", IMAGES, images),
    "CLIP-text": Row(
        "CLIPTextModelWithProjection", "CLIPText", {**ENCODER, "projection_dim": 3},
        output="text_embeds",
    ),
    "CLIP-vision": Row(
        "CLIPVisionModelWithProjection", "CLIPVision", {**IMAGES, "projection_dim": 3}, images,
        output="image_embeds",
    ),
    "Whisper-encoder": Row("WhisperForAudioClassification", "Whisper", WHISPER, sounds),
}  # fmt: skip
# The quick suite has one of each kind.
QUICK = ("GPT2", "GPT2-lm", "Llama-tied-lm", "Gemma", "Mistral", "T5", "BERT", "RoBERTa", "DeBERTa")
DECODERS = [f"{name}{end}" for name in ("GPT2", "Llama", "Mistral") for end in ("", "-unpadded")]
TIED = ("GPT2-lm", "Llama-tied-lm", "Gemma-lm", "T5", "BERT-masked")


def rows(names: Any) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@dataclass(frozen=True)
class Problem:
    """A model, its inputs with and without labels, targets, and Jacobians of single samples."""

    row: Row
    model: nn.Module
    inputs: dict[str, Tensor]
    batch: Any
    y: Tensor
    likelihood: Likelihood
    jacobians: dict[str, Tensor]
    f: Tensor

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.likelihood, Categorical):
            return F.cross_entropy(f.movedim(-1, 1), y, reduction="sum")
        return 0.5 * (f - y).square().sum()

    @property
    def hessian(self) -> Tensor:
        return oracle.output_hessian(self.f, self.y, self.loss)

    def diagonal(self, m: Tensor) -> dict[str, Tensor]:
        """Of the sum of Jᵀ M J, with M [N, D, D] at the outputs."""
        formula = "nc...,ncd,nd...->..."
        return {name: torch.einsum(formula, j, m, j) for name, j in self.jacobians.items()}

    def of_column(self, s: Tensor) -> dict[str, Tensor]:
        """The same for M = s sᵀ of columns [N, *out]."""
        s = s.double().flatten(1)
        return self.diagonal(s.unsqueeze(2) * s.unsqueeze(1))

    def call(self, function: Callable[..., Any], **options: Any) -> Any:
        with strictly():
            return function(
                self.model, self.batch, self.likelihood, output=self.row.output, **options
            )

    def assert_close(self, found: Any, true: dict[str, Tensor], units: float = 1) -> None:
        check.assert_close(found, true, units * self.row.tolerance)


@contextmanager
def strictly() -> Iterator[None]:
    """No warning, such as that samples run one at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def entry(output: str | None) -> oracle.Select:
    return lambda result: result[output or "logits"]


@cache
def made(name: str) -> Problem:
    row = ROWS[name]
    config = getattr(transformers, f"{row.config}Config")(**row.options, num_labels=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, row.model)(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
        inputs = row.inputs()
        jacobians, f = oracle.jacobians(model, inputs, entry(row.output))
        if row.output is not None:
            y = torch.randn(f.shape, dtype=f.dtype)
            return Problem(row, model, inputs, (inputs, y), y, resolve("gaussian"), jacobians, f)
        if f.dim() == 2:
            labels = y = torch.randint(3, (len(f),))
        elif row.model.endswith(("CausalLM", "LMHeadModel")):
            # As from a collator: the tokens themselves, here without -100 at padding.
            labels = inputs["input_ids"].clone()
            labels[1, 2] = -100
            y = torch.full_like(labels, -100)
            y[:, :-1] = labels[:, 1:]
            y[:, :-1][inputs["attention_mask"][:, 1:] == 0] = -100
        else:
            labels = torch.randint(f.shape[2], f.shape[:2])
            labels[1, 2] = -100
            padded = "decoder_input_ids" not in inputs
            y = labels.masked_fill(inputs["attention_mask"] == 0, -100) if padded else labels
    noise = Categorical(dim=-1) if f.dim() == 3 else Categorical()
    return Problem(row, model, inputs, {**inputs, "labels": labels}, y, noise, jacobians, f)


@pytest.mark.parametrize("name", rows(ROWS))
def test_exact_diagonal(name: str) -> None:
    problem = made(name)
    exact = problem.diagonal(problem.hessian)
    problem.assert_close(problem.call(lk.diag, method="exact"), exact)
    problem.assert_close(problem.call(lk.diag, method="mixed", threshold=float("inf")), exact)


@pytest.mark.parametrize("name", rows(ROWS))
def test_sampled_and_empirical_diagonals(name: str) -> None:
    problem = made(name)
    found = problem.call(lk.diag, method="mc", generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    s = problem.likelihood.sampled_column(problem.f, generator, problem.y)[0]
    problem.assert_close(found, problem.of_column(s), CANCELLED)
    found = problem.call(lk.diag, method="empirical")
    s = problem.likelihood.score(problem.f, problem.y)
    problem.assert_close(found, problem.of_column(s), CANCELLED)


@pytest.mark.parametrize("name", rows(ROWS))
def test_the_rest_runs_on_the_whole_batch_or_is_refused_with_what_works(name: str) -> None:
    problem = made(name)
    ones = {name: torch.ones_like(p) for name, p in oracle.trainable(problem.model).items()}
    exact = problem.diagonal(problem.hessian)
    options: dict[str, Any] = {"output": problem.row.output}

    def propagated() -> Tensor:
        with strictly():
            return lk.propagated_variance(problem.model, problem.inputs, ones, **options)

    calls: list[Callable[[], Any]] = [
        lambda: problem.call(lk.diag, method="approx").vector(),
        lambda: problem.call(lk.diag, method="mixed", threshold=20).vector(),
        propagated,
    ]
    for call in calls:
        try:
            value = call()
        except lk.Refused as refused:
            assert "work" in str(refused)
        else:
            assert bool((value >= 0).all()) and float(value.sum()) > 0
    factors = problem.call(lk.kron, method="exact")
    assert list(factors) == list(exact)
    blocks = problem.call(lk.blocks, by="neuron")
    for block in blocks.values():
        assert bool(block.diagonal(dim1=-2, dim2=-1).isfinite().all())
    x = problem.inputs if problem.row.output else problem.batch  # labels are left out of it
    with strictly():
        variance = lk.predictive_variance(problem.model, x, ones, **options).flatten(1)
    true = torch.stack([j.square().flatten(2).sum(2) for j in problem.jacobians.values()]).sum(0)
    torch.testing.assert_close(variance, true, rtol=problem.row.tolerance, atol=0)


@pytest.mark.parametrize("name", DECODERS)
def test_kronecker_factors_of_linear_layers(name: str) -> None:
    """Conv1D, a Linear layer whose weight is transposed, included."""
    problem = made(name)
    found = problem.call(lk.kron, method="exact")
    true = factors(problem)
    assert len(true) == (9 if problem.row.config == "GPT2" else 15)
    for name, (a, b) in true.items():
        one = found[name]
        pairs = {"a": one.input * found.count, "b": one.output}, {"a": a[None], "b": b[None]}
        problem.assert_close(*pairs)


def calls_of(
    problem: Problem, kinds: tuple[type[nn.Module], ...]
) -> Iterator[tuple[Tensor, list[tuple[Any, str, Tensor, Tensor]]]]:
    """For each sample M, and module, name, input and [D, T, O] Jacobian of all calls of a kind."""
    calls: list[tuple[Any, ...]] = []
    hooks = [
        module.register_forward_hook(
            lambda m, inputs, z, name=name: calls.append((m, name, inputs[0], z))
        )
        for name, module in problem.model.named_modules()
        if isinstance(module, kinds)
    ]
    select = entry(problem.row.output)
    for sample, m in zip(oracle.samples(problem.inputs), problem.hessian, strict=True):
        calls.clear()
        f = oracle.call(problem.model, sample, select)
        rows = oracle.jacobian(f, [z for *_, z in calls])
        yield (
            m,
            [
                (module, name, x.detach()[0], j[:, 0])
                for (module, name, x, _), j in zip(calls, rows, strict=True)
            ],
        )
    for hook in hooks:
        hook.remove()


def factors(problem: Problem) -> dict[str, tuple[Tensor, Tensor]]:
    """By weight: the sums over samples of x xᵀ, a mean over positions, and of Σ s M sᵀ."""
    found: dict[str, tuple[Any, Any]] = {}
    for m, calls in calls_of(problem, (nn.Linear, transformers.pytorch_utils.Conv1D)):
        for _, name, x, s in calls:
            a, b = found.get(f"{name}.weight", (0.0, 0.0))
            b = b + torch.einsum("cto,cd,dtp->op", s, m, s)
            found[f"{name}.weight"] = a + x.mT @ x / len(x), b
    return found


@pytest.mark.parametrize("name", rows(TIED))
def test_kronecker_factors_of_a_tied_embedding(name: str) -> None:
    """As the docs define them: U and W of all positions of both uses."""
    problem = made(name)
    model: Any = problem.model
    table = model.get_input_embeddings().weight
    key = next(name for name, p in problem.model.named_parameters() if p is table)
    u, w = torch.zeros(len(table)).double(), torch.zeros(table.shape[1], table.shape[1]).double()
    for m, calls in calls_of(problem, (nn.Linear, nn.Embedding)):
        own = [call for call in calls if call[0].weight is table]
        assert len(own) > 1
        count = sum(len(x) for _, _, x, _ in own)
        for module, _, x, s in own:
            if isinstance(module, nn.Embedding):
                read = (x != (-1 if module.padding_idx is None else module.padding_idx)).double()
                u.index_add_(0, x, read / count)
                s = s * getattr(module, "embed_scale", 1.0)
                w += torch.einsum("t,cto,cd,dtp->op", read, s, m, s)
            else:
                u += torch.einsum("cto,cd,dto->o", s, m, s) / count
                w += x.mT @ x
    found = problem.call(lk.kron, method="exact")
    one = found[key]
    pairs = {"u": one.input[0] * found.count, "w": one.output[0]}, {"u": u, "w": w}
    problem.assert_close(*pairs)
    problem.call(lk.kron_corrected)
    problem.call(lk.kron, sharing="reduce")
