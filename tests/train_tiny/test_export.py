"""A training checkpoint becomes a checkpoint that the product reads, with the numbers that training saw."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import INDEX
from export import PRESET, export
from oracle.second_opinion_text import write_texts
from paged_run import PagedModel, compile_plan
from torch import Tensor
from training_checkpoint import Exported, write_training_checkpoint
from weight_formats import represented

from deepinfer_gen.codegen.tensors import demanded_parameters, demanded_tensors
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.kernels.reference.engram_gather import engram_gather
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.stored import ExpertStack, Matrix
from deepinfer_gen.runtime.weights import TensorSource, load_weights
from deepinfer_gen.specs.presets import preset_folder

MOST_BYTES = MOST_PARAMETERS = 12_000_000


@pytest.fixture(scope="module")
def released(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the exported folder, where specs may be written."""
    return shutil.copytree(exported.folder, tmp_path_factory.mktemp("released") / "copy")


@pytest.fixture(scope="module")
def source(released: Path) -> TensorSource:
    """The exported folder as an engine that drafts reads it, strictly."""
    plan = model_plan(compile_plan(released, tokens=64, block=32, speculative__nextn=5))
    return load_weights(plan, Constants.of(plan), released)


def test_every_parameter_is_read_as_represented(exported: Exported, source: TensorSource) -> None:
    """With the product's readers: matrices, stacks of experts, table rows, vectors."""
    for parameter in demanded_parameters(exported.config):
        expected = represented(parameter.storage, exported.parameters[parameter.name])
        match parameter.storage:
            case "fp8":
                found = Matrix(source, parameter.name).decode()
            case "mxfp4":
                expert, role = parameter.name.rsplit(".", 1)
                found = ExpertStack(source, [expert], [role]).decode(0)
            case "mxfp8":
                table, scale = (source.stored(f"{parameter.name}.{part}") for part in ("weight", "scale"))
                every = torch.arange(parameter.shape[0])
                found = engram_gather(table, scale, every.unsqueeze(1), tokens=64)
            case _:
                found = source.stored(parameter.name).float()
        assert torch.equal(found, expected), parameter.name
        assert found.shape == parameter.shape


def test_runs_under_every_policy(released: Path) -> None:
    """320 tokens, more than the 256 that the candidates hold: chunks give what one step gives, whatever is quantised.

    Quantised logits are another model's, yet near: the cosine with the unquantised ones stays above that of chance.
    """
    prompt = [(37 * place + place // 7) % 2000 for place in range(320)]
    exact: Tensor | None = None
    for policy in ("float32_unquantized", "float32", "bf16", "released"):
        plan = compile_plan(released, tokens=352, block=32, numerics__policy=policy)
        paged = PagedModel(plan, released)
        whole, chunked = (paged.logits(prompt, chunks, last=50) for chunks in ([320], [100, 150, 70]))
        if policy.startswith("float32"):
            torch.testing.assert_close(chunked, whole, atol=1e-4, rtol=0)
        exact = whole if exact is None else exact
        assert float(torch.nn.functional.cosine_similarity(whole, exact).min()) > 0.6, policy


@pytest.mark.long
@pytest.mark.parametrize(("policy", "tolerance"), [("float32_unquantized", 1e-4), ("float32", 0.05), ("released", 0.3)])
def test_the_compiled_engine_writes_what_the_model_chooses(
    released: Path, tmp_path: Path, policy: str, tolerance: float
) -> None:
    """Through the scheduler, in a batch; the model alone, over the whole text at once, would choose each token too.

    Other orders of a sum move steps of what is quantised, so that the best tokens are the same up to a ``tolerance`` of
    their logits, whose spread is 1 and which exceed the mean by 3.
    """
    prompts: list[str | list[int]] = ["def ", list(range(100, 110)), list(range(300, 640))]
    plan = compile_plan(released, tokens=384, block=32, numerics__policy=policy)
    paged = PagedModel(plan, released)
    for text in write_texts(released, tmp_path, prompts, 12, policy):
        logits = paged.logits(text.ids[:-1], [len(text.ids) - 1], last=text.written)
        written = torch.tensor(text.ids[text.prompt :]).unsqueeze(1)
        gap = float((logits.amax(1, keepdim=True) - logits.gather(1, written)).max())
        assert gap <= tolerance
        chosen = logits.log_softmax(1).gather(1, written).squeeze(1)
        torch.testing.assert_close(chosen, torch.tensor(text.logprobs), atol=tolerance, rtol=0)


def test_size(exported: Exported) -> None:
    """12 MB on disk, whatever lies beside the weights, and 12 M parameters outside the Engram tables."""
    assert sum(path.stat().st_size for path in exported.folder.iterdir()) <= MOST_BYTES
    parameters = list(demanded_parameters(exported.config))
    assert sum(math.prod(p.shape) for p in parameters if p.group != "engram") <= MOST_PARAMETERS


def test_the_folder(exported: Exported) -> None:
    """One shard with its index, the tensors in the released order, and the model folder's own files as they are."""
    temperatures = "confidence_temperatures.json"  # of the weights that it was fitted for
    own = {path.name for path in PRESET.iterdir() if "safetensors" not in path.name and path.name != temperatures}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "NOTICE"} <= own
    assert {path.name for path in exported.folder.iterdir()} == own | {"model-00001-of-00001.safetensors", INDEX}
    for name in own:
        assert (exported.folder / name).read_bytes() == (PRESET / name).read_bytes()
    index = json.loads((exported.folder / INDEX).read_text())
    demanded = list(demanded_tensors(exported.config))
    assert list(index["weight_map"]) == [tensor.name for tensor in demanded]
    assert index["metadata"]["total_size"] == sum(tensor.spec.nbytes for tensor in demanded)


def test_exported_over_itself_with_other_weights(exported: Exported, tmp_path: Path) -> None:
    """The model folder may be the target; the same weights give the same bytes, other weights replace them."""
    out = tmp_path / "out"
    export(exported.checkpoint, PRESET, out)
    (out / "calibration.json").write_text("[1.0]")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (tmp_path / ".out.new").mkdir()  # of an export that was interrupted
    export(exported.checkpoint, out, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    other = exported.parameters | {"norm.weight": torch.full((256,), 2.0)}
    export(write_training_checkpoint(tmp_path / "other", other), out, out)
    changed = {path.name for path in out.iterdir() if path.read_bytes() != before.pop(path.name)}
    assert changed == {"model-00001-of-00001.safetensors"}
    assert not before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: change(tensors[name].clone())})


def at(place: tuple[int, ...], value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor[place] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("code", "message", "change"),
    [
        ("DI431", "parameter 'layers.8.ffn.experts.7.w3' [96, 256] is missing", without("layers.8.ffn.experts.7.w3")),
        (
            "DI431",
            "'optimizer.step' is no parameter of the model",
            lambda t: t.update({"optimizer.step": torch.ones(1)}),
        ),
        (
            "DI431",
            "parameter 'layers.0.attn.wq_a' is float32 [256, 128], expected float32 [128, 256]",
            changed("layers.0.attn.wq_a", lambda x: x.T.contiguous()),
        ),
        (
            "DI431",
            "parameter 'norm.weight' is bfloat16 [256], expected float32 [256]",
            changed("norm.weight", lambda x: x.to(torch.bfloat16)),
        ),
        (
            "DI432",
            "1 of the numbers of parameter 'layers.1.engram.embed' are NaN or infinite",
            changed("layers.1.engram.embed", at((7, 3), math.nan)),
        ),
        (
            "DI432",
            "1 of the numbers of parameter 'mtp.2.markov_head.head.weight' are NaN or infinite",
            changed("mtp.2.markov_head.head.weight", at((7, 3), -math.inf)),
        ),
        (
            "DI432",
            "1 of the numbers of parameter 'embed.weight' exceed bf16; the largest magnitude is 3.4e+38",
            changed("embed.weight", at((7, 3), -3.4e38)),
        ),
    ],
)
def test_a_wrong_parameter_is_named(
    exported: Exported, tmp_path: Path, code: str, message: str, change: Callable[[dict[str, Tensor]], object]
) -> None:
    parameters = dict(exported.parameters)
    change(parameters)
    checkpoint = write_training_checkpoint(tmp_path / "wrong", parameters)
    with pytest.raises(InputError) as raised:
        export(checkpoint, PRESET, tmp_path / "out")
    assert [(d.code, d.message, d.file) for d in raised.value.diagnostics] == [(code, message, "wrong")]
    assert [path.name for path in tmp_path.iterdir()] == ["wrong"]


def test_every_fault_is_told(exported: Exported, tmp_path: Path) -> None:
    write_training_checkpoint(tmp_path / "wrong", {"a": torch.ones(1)})
    with pytest.raises(InputError) as raised:
        export(tmp_path / "wrong", PRESET, tmp_path / "out")
    assert len(raised.value.diagnostics) == 1 + len(exported.parameters)


def test_what_cannot_be_read_or_written(exported: Exported, tmp_path: Path) -> None:
    torn = write_training_checkpoint(tmp_path / "torn", exported.parameters) / "weights-1.safetensors"
    torn.write_bytes(torn.read_bytes()[:1000])
    for name in ("torn", "absent"):
        with pytest.raises(InputError, match="the training checkpoint cannot be read") as raised:
            export(tmp_path / name, PRESET, tmp_path / "out")
        assert raised.value.diagnostics[0].code == "DI430"
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    for out in (home, torn):
        with pytest.raises(InputError) as raised:
            export(exported.checkpoint, PRESET, out)
        assert raised.value.diagnostics[0].code == "DI433"
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]


@pytest.mark.long
def test_the_command(exported: Exported, tmp_path: Path) -> None:
    """It exports into the package unless told otherwise, and says what was written or what is wrong."""
    command = [sys.executable, str(Path(__file__).parents[2] / "tools" / "train_tiny"), "export"]
    options = ["--out", str(tmp_path / "out")]
    done = subprocess.run([*command, str(exported.checkpoint), *options], capture_output=True, text=True, check=True)
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert done.stdout == f"{tmp_path / 'out'}: {size:,} bytes\n"
    failed = subprocess.run([*command, "absent", *options], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "absent: error[DI430]: the training checkpoint cannot be read" in failed.stderr
    assert preset_folder("tiny-v41-code").samefile(PRESET)
