"""What a kernel has to show before it may stand for ops: in workers, as a rank asks them."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F

from sgplan.grammar.plan import Triton
from sgplan.planner.kernels import check
from sgplan.planner.kernels.check import Case, TensorLike, Verdict, objection
from sgplan.planner.kernels.source import SHIPPED, KernelFault, located

FOLDER = Path(__file__).parent.parent / "cases" / "kernels"


def like(*shape: int, dtype: torch.dtype = torch.float32) -> TensorLike:
    return TensorLike(shape, torch.empty(shape).stride(), dtype)


def case(
    written: Triton,
    script: Any,
    *tensors: TensorLike,
    returns: tuple[int, ...] = (0,),
    **constants: Any,
) -> Case:
    kernel = located(written, FOLDER)
    return Case(kernel, fx.symbolic_trace(script), tensors, constants, returns, "cpu")


add_relu: Any = lambda x, y: (torch.relu(x + y),)  # noqa: E731  (annotations do not pickle)


def faulty(
    name: str, reference: str | None = "plain", rows: int = 12, columns: int = 40, **more: Any
) -> Case:
    kernel = Triton(f"faulty.py:{name}", reference and f"faulty.py:{reference}", **more)
    return case(kernel, add_relu, like(rows, columns), like(rows, columns))


@pytest.mark.parametrize("reference", ["plain", None])
def test_a_right_kernel_may_be_used(tmp_path: Path, reference: str | None) -> None:
    right = faulty("right", reference, backward="faulty.py:right_backward")
    assert objection(right, tmp_path) == ""


FAULTS = {
    "off_by_one": r"the kernel on float32 .* differs from its reference by inf .* nan instead of",
    "no_store_mask": "it writes outside of a tensor of its own",
    "wrong_math": r"differs from its reference by",
    "wrong_dtype": "returns float16 12x40, and its reference float32 12x40",
    "low_precision": r"differs from its reference by .* allowed",
    "too_few_programs": "nan instead of",
    "in_place": "it changes argument 0",
    "wrong_shape": "returns float32 480, and its reference float32 12x40",
    "undefined": "CompilationError.*not_defined_anywhere",
    "shapes": "CompilationError",
    "raises": r"`raises` for sm_80 fails: ValueError: never works",
    "no_kernel": "it starts no Triton kernel",
    "more_arguments": r"missing 1 required positional argument: 'z'",
    "crashes": "took its process down with signal 11",
    "absent": r"has no function `absent`",
    "leaves": "`leaves` for sm_80 fails: SystemExit",
    "a_list": r"`a_list` returns a list where a tensor is wanted",
    "blocks_of_64": r"on float32 7x300, .* differs .* at \[0, 64\]: nan instead of",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_refused_with_the_difference(tmp_path: Path, name: str) -> None:
    size = 300 if name == "blocks_of_64" else 40
    text = objection(faulty(name, rows=240 if size == 300 else 12, columns=size), tmp_path)
    assert re.search(FAULTS[name], text, re.DOTALL), text


def test_a_wrong_backward_is_refused(tmp_path: Path) -> None:
    text = objection(faulty("right", backward="faulty.py:wrong_backward"), tmp_path)
    assert "differs from the reference's gradient" in text


@pytest.mark.slow
def test_a_wrong_reference_is_refused(tmp_path: Path) -> None:
    text = objection(faulty("right", "wrong_plain"), tmp_path)
    assert text.startswith("the reference on float32")
    assert "differs from the script's own ops" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("cut_off", "the gradient of the reference .* differs from that of the script's own ops"),
        ("in_place_plain", "the kernel on float32 .*: it changes argument 0"),
    ],
)
def test_a_reference_that_only_looks_right_is_refused(
    tmp_path: Path, reference: str, why: str
) -> None:
    assert re.search(why, objection(faulty("right", reference), tmp_path))


@pytest.mark.slow
def test_a_kernel_that_is_compared_with_nothing_is_refused(tmp_path: Path) -> None:
    kernel = Triton("faulty.py:right", "faulty.py:plain")
    nowhere: Any = lambda x, y: (torch.log(-x.abs() - 1) + y,)  # noqa: E731
    asked = case(kernel, nowhere, like(3, 5), like(3, 5))
    assert "make nothing finite of float32" in objection(asked, tmp_path)


@pytest.mark.slow
def test_an_expanded_tensor_is_compared_like_others(tmp_path: Path) -> None:
    kernel = Triton("faulty.py:right", "faulty.py:plain")
    expanded = TensorLike((12, 40), (0, 1), torch.float32)
    assert objection(case(kernel, add_relu, like(12, 40), expanded), tmp_path) == ""


@pytest.mark.slow
def test_a_kernel_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PATIENCE", 6.0)
    assert objection(faulty("takes_long"), tmp_path) == "the kernel did not end within 6 s"


@pytest.mark.slow
def test_a_wide_tolerance_of_the_plan_lets_a_coarse_kernel_pass(tmp_path: Path) -> None:
    assert objection(faulty("low_precision", tolerance=0.02), tmp_path) == ""


def test_a_verdict_is_kept_until_something_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def worker(task: str, case: Case) -> Verdict:
        asked.append(task)
        return Verdict("wrong" if task == "compare" else "")

    monkeypatch.setattr(check, "_worker", worker)
    assert [objection(faulty("right"), tmp_path) for _ in range(2)] == ["wrong", "wrong"]
    assert sorted(asked) == ["compare", "compile"]
    assert objection(faulty("right", tolerance=0.1), tmp_path) == "wrong"
    assert len(asked) == 4


def test_what_another_try_might_not_say_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Verdict("ended by signal 9", lasting=False), Verdict(""), Verdict(""), Verdict("")]
    monkeypatch.setattr(check, "_worker", lambda task, case: answers.pop(0))
    assert objection(faulty("right"), tmp_path) == "ended by signal 9"
    assert objection(faulty("right"), tmp_path) == ""


SCALED = "from utils import SCALE\ndef f(x):\n    return x * SCALE\n"


def test_what_a_kernel_imports_from_its_folder_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(SCALED)
    (tmp_path / "utils.py").write_text("SCALE = 2\n")
    before = located(Triton("kernel.py:f"), tmp_path)
    (tmp_path / "utils.py").write_text("SCALE = 3\n")
    after = located(Triton("kernel.py:f"), tmp_path)
    assert before.digest != after.digest


def test_a_module_of_the_scripts_is_no_neighbour_of_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = types.ModuleType("utils")
    monkeypatch.setitem(sys.modules, "utils", mine)
    (tmp_path / "kernel.py").write_text(SCALED)
    (tmp_path / "utils.py").write_text("SCALE = 2\n")
    assert located(Triton("kernel.py:f"), tmp_path).function.load()(4) == 8
    assert sys.modules["utils"] is mine


LIBRARY: dict[str, tuple[Any, tuple[TensorLike, ...], dict[str, Any]]] = {
    "bias_gelu": (
        lambda x, bias: (F.gelu(x + bias, approximate="tanh"),),
        (like(3, 5, 24), like(24)),
        {"approximate": "tanh"},
    ),
    "add_layer_norm": (
        lambda x, y, w, b: (x + y, F.layer_norm(x + y, (24,), w, b, 1e-4)),
        (like(3, 5, 24), like(3, 5, 24), like(24), like(24)),
        {"eps": 1e-4, "normalized_shape": [24]},
    ),
    "add_rms_norm": (
        lambda x, y, w: (x + y, F.rms_norm(x + y, (24,), w)),
        (like(3, 5, 24), like(3, 5, 24), like(24)),
        {"eps": None},
    ),
    "cross_entropy": (
        lambda x, target: (F.cross_entropy(x, target, ignore_index=3),),
        (like(9, 24), like(9, dtype=torch.int64)),
        {"ignore_index": 3, "reduction": 1},
    ),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_kernels_that_come_along_are_right(tmp_path: Path, name: str) -> None:
    script, tensors, constants = LIBRARY[name]
    returns = (0, 1) if name.startswith("add") else (0,)
    asked = case(Triton(f"sgplan:{name}"), script, *tensors, returns=returns, **constants)
    assert objection(asked, tmp_path) == ""


def test_what_does_not_come_along_is_named() -> None:
    known = r"no kernel `bias_relu` .* those that do: `add_layer_norm`"
    with pytest.raises(KernelFault, match=known):
        located(Triton("sgplan:bias_relu"), FOLDER)
    with pytest.raises(KernelFault, match=r"there is no file `.*absent\.py`"):
        located(Triton("absent.py:f"), FOLDER)
