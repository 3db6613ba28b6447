"""What was captured from the running script, as pure data: the planner's input beside the plan.

Made inside a rank (parameters when DDP is entered, graphs when Dynamo compiles); the lowering
passes read nothing else, so every pass is tested without torch. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Engine = Literal["eager", "inductor"]
Path = Literal["hooks", "in_graph", "stock", "none"]
EffectKind = Literal["random", "mutation"]


@dataclass(frozen=True, slots=True)
class ParameterFact:
    """One trainable parameter, in registration order of its root.

    Attributes:
        name: name in the unwrapped model (no `module.`, no `_orig_mod.`).
        shape, strides: in elements.
        dtype: short name (`f32`, `bf16`, `f16`, `f64`).
        device: device type (`cpu`, `cuda`).
        itemsize: bytes of one element.
        dense: whether shape and strides describe memory without holes or overlap.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    itemsize: int
    dense: bool = True

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


@dataclass(frozen=True, slots=True)
class OpFact:
    """One op of a captured graph, where it stands and what it costs.

    Attributes:
        op: name with overload (`aten.addmm.default`, `mylib::scan.default`).
        module: module path in the unwrapped model, empty for the root itself.
        families: op families it belongs to.
        flops: floating-point operations, multiply and add counted as two; 0 when not counted.
        bytes: bytes read plus bytes written, as if nothing were fused.
        reads, writes: short dtypes of the tensors it is given and makes, each once, in order.
        origin: the op that the script's call dispatched, where it was decomposed to this one.
    """

    op: str
    module: str
    families: tuple[str, ...]
    flops: int
    bytes: int
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class EffectFact:
    """Something an op does beside making its result; effects stand in the order of the graph.

    Attributes:
        kind: `random` takes numbers from a stream; `mutation` changes an input or a buffer.
        op, module: as in `OpFact`.
        touches: the stream (`rng:cpu`; `seed:2` for the third of the seeds that the compiler draws
            at once), or the name of what is changed (`bn.running_mean`, `x`).
    """

    kind: EffectKind
    op: str
    module: str
    touches: str


@dataclass(frozen=True, slots=True)
class GradientFact:
    """Where the gradient of one parameter becomes final in a backward graph.

    Attributes:
        parameter: name in the unwrapped model.
        position: index of the producing node in the graph's op list; -1 when the graph hands
            one of its inputs through.
        op: the producing op.
        module: module path of the producing op.
        handed_over: index of the op behind which the reduction learns of it, when that is later:
            a compiled graph hands gradients over in groups.
    """

    parameter: str
    position: int
    op: str
    module: str
    handed_over: int | None = None

    @property
    def ready(self) -> int:
        """Index of the op behind which its reduction can begin."""
        return self.position if self.handed_over is None else self.handed_over


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One unit of the compiler's schedule after fusion: what runs as one kernel.

    Attributes:
        kind: `loops` one loop nest; `outer loops` several that share the outer ones; `library` a
            call of an op as it is; `template` a generated kernel with something fused into it.
        ops: op and module of what it computes, as the script called them, in graph order.
        bytes: read and written.
        rules: addresses of the rules that have a site in it.
    """

    kind: Literal["loops", "outer loops", "library", "template"]
    ops: tuple[tuple[str, str], ...]
    bytes: int
    rules: tuple[str, ...] = ()


Outcome = Literal["fused", "separate", "replaced", "refused", "missed", "rejected", "recomputed"]


@dataclass(frozen=True, slots=True)
class SiteFact:
    """One place where the pattern of a rule occurs, and what became of it.

    Attributes:
        rule: its address (`fuse.bias_gelu`).
        key: names the place in the script, the same in every graph that computes it.
        ops: op and module of each step of the pattern.
        outcome: `replaced` by a kernel of the user's; `refused` by a condition of the rule, or
            because no kernel can stand there; `missed` by the compiler; `rejected` because the
            kernel computes something else; `recomputed` for a copy of a forward site in a backward
            graph.
        why: the reason, or what else there is to know; may be empty.
        kernels: places of the kernels that hold it, in the graph's list.
    """

    rule: str
    key: str
    ops: tuple[tuple[str, str], ...]
    outcome: Outcome
    why: str = ""
    kernels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A site of a rule with a kernel, on its way into a graph.

    Attributes:
        fact: its `key` is the name of the Dynamo node that stands there, if one does.
        op: the name of the kernel's op; empty where the script's ops were left.
    """

    fact: SiteFact
    op: str = ""


@dataclass(frozen=True, slots=True)
class RecomputeFact:
    """What one `recompute` block came to in a forward graph.

    Attributes:
        clause: its address (`recompute.blocks`).
        before, after: bytes saved of what its ops make, without the plan's blocks and with them.
        ops: how many ops are computed again that would not be otherwise, views left out.
        limit: bytes that may be saved, under `memory`.
        objection: why the graph cannot do it, in words; empty when it can.
        rival: the block that has the op named by `objection` with the same priority.
    """

    clause: str
    before: int
    after: int
    ops: int
    limit: int | None = None
    objection: str = ""
    rival: str = ""


@dataclass(frozen=True, slots=True)
class GraphFact:
    """One captured ATen graph.

    Attributes:
        direction: `forward` (also for inference) or `backward`.
        digest: canonical structural hash, stable across processes (hex).
        shapeless_digest: the same with sizes erased.
        region: qualified name and line of the captured frame (`GPT.forward`).
        inputs, outputs: short names of the values, user values only.
        ops: in graph order.
        bytes_saved: bytes of activations saved for backward (forward graphs), else 0.
        gradients: backward graphs: the parameters whose gradients it produces, by position.
        heavy_after: backward graphs: positions of matmul or convolution ops, ascending.
        variant: 0 for the first capture of a region, counted up by recompilation.
        input_shapes: forward graphs: sizes of each of `inputs`, None for one that may vary.
        kernels: of the compiled graph, in the order in which they run; empty in an eager one.
        sites: of fusion rules, in graph order.
        near: places where a rule's pattern begins and does not go on, in words, by rule.
        effects: of its ops, in graph order.
        saved_without: `bytes_saved` if the plan had no `recompute`; None when it has none.
        recomputed: forward graphs: what the plan's `recompute` blocks came to.
        stage: which of the distinct precision stages of its root it is compiled for.
    """

    direction: Literal["forward", "backward"]
    digest: str
    shapeless_digest: str
    region: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[OpFact, ...]
    bytes_saved: int = 0
    gradients: tuple[GradientFact, ...] = ()
    heavy_after: tuple[int, ...] = ()
    variant: int = 0
    input_shapes: tuple[tuple[int | None, ...], ...] = ()
    kernels: tuple[KernelFact, ...] = ()
    sites: tuple[SiteFact, ...] = ()
    near: tuple[tuple[str, str], ...] = ()
    effects: tuple[EffectFact, ...] = ()
    saved_without: int | None = None
    recomputed: tuple[RecomputeFact, ...] = ()
    stage: int = 0

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.ops)

    @property
    def bytes(self) -> int:
        return sum(op.bytes for op in self.ops)


@dataclass(frozen=True, slots=True)
class MissFact:
    """Something that could not be captured: which module or function, and the compiler's reason."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class RootFact:
    """One root: a module given to DDP, compiled by the script, or called outermost.

    Attributes:
        name: `model` for a single root, the label of a `model` block, else the class with a number.
        cls: qualified class (`__main__:GPT`).
        kind: how it became a root.
        engine: how its calls run.
        path: how its gradients are reduced; `none` outside data parallel.
        why: the reason for engine and path, one sentence.
        parameters: trainable, in registration order.
        modules: every module path with its class name, registration order.
        graphs: captured graphs, forward before its backward.
        written: the same before an engine decomposed them, ops as the user knows them; in plan mode
            only, empty where `graphs` are such already.
        misses: regions of it that could not be captured.
        made_compiled: whether the plan compiles it and the script does not.
    """

    name: str
    cls: str
    kind: Literal["ddp", "compiled", "module"]
    engine: Engine
    path: Path
    why: str
    parameters: tuple[ParameterFact, ...]
    modules: tuple[tuple[str, str], ...] = ()
    graphs: tuple[GraphFact, ...] = ()
    misses: tuple[MissFact, ...] = ()
    written: tuple[GraphFact, ...] = ()
    made_compiled: bool = False


def numbered(classes: Sequence[str]) -> tuple[str, ...]:
    """Names of optimizers: their classes, numbered from 0 where one occurs more than once."""
    total, seen = Counter(classes), Counter[str]()
    names: list[str] = []
    for cls in classes:
        names.append(f"{cls}.{seen[cls]}" if total[cls] > 1 else cls)
        seen[cls] += 1
    return tuple(names)


@dataclass(frozen=True, slots=True)
class OptimizerFact:
    """One optimizer the script built.

    Attributes:
        cls: class name (`AdamW`).
        numel: elements of all its parameters.
        kind: `as_written`, or `fused` or `compiled` by the plan.
        why: why the plan's wish could not be followed, else empty.
        root: the root most of its parameters belong to, empty when they belong to none.
    """

    cls: str
    numel: int
    kind: Literal["as_written", "fused", "compiled"]
    why: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that one rank knows of the script.

    Attributes:
        rank, world: of the process group of data parallel.
        torch: version string.
        device: device type of the roots.
        roots: in the order in which they were found.
        optimizers: in the order in which they were built.
    """

    rank: int
    world: int
    torch: str
    device: str
    roots: tuple[RootFact, ...]
    optimizers: tuple[OptimizerFact, ...] = ()
