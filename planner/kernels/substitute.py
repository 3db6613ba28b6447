"""Kernels in the place of the ops that `fuse … { with = triton(…) }` matches, in one Dynamo graph.

    written   the ops that the graph calls, and where patterns occur among them
    region    what of them a kernel stands for, with its tensors and constants
    check     whether the kernel computes the same, asked of a worker
    op        the kernel as a custom op
    place     the op in the graph

What cannot be replaced stays as the script wrote it, with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.record import op_name
from sgplan.planner.capture.rewrite import Rewritten
from sgplan.planner.capture.sites import DeviceProfile, Site, judge
from sgplan.planner.facts import Outcome, Placed, SiteFact
from sgplan.planner.kernels.check import Case, tensors_like
from sgplan.planner.kernels.op import Calling, Parts, Tensors, made_op
from sgplan.planner.kernels.place import Standing, expandable, placed
from sgplan.planner.kernels.region import Region, changed_by, given, region_of
from sgplan.planner.kernels.source import Kernel, KernelFault, Unfit
from sgplan.planner.kernels.written import Written, sites_of, written
from sgplan.planner.rules import Rule


@dataclass(frozen=True, slots=True)
class Substitution:
    """Puts kernels into a graph (`capture.rewrite.GraphPass`).

    Attributes:
        rules: all of the root, higher priority first.
        modules: module paths of the unwrapped model.
        kernels: by the addresses of their rules.
        objection: why a kernel may not stand for a site (`check.objection`); empty when it may.
        profile: of the device, for `min_gain`.
        told: is told what became of them before anything is compiled.
    """

    name: ClassVar[str] = "substitute_kernels"
    rules: tuple[Rule, ...]
    modules: tuple[str, ...]
    kernels: Mapping[str, Kernel]
    objection: Callable[[Case], str]
    profile: Callable[[], DeviceProfile]
    told: Callable[[Sequence[Placed]], None] = lambda placed: None

    @property
    def key(self) -> str:
        return str((self.rules, sorted(kernel.digest for kernel in self.kernels.values())))

    def apply(self, graph: Rewritten) -> Rewritten:
        """The graph with its kernels, and every site of theirs."""
        made, placed = self._made(graph.gm)
        self.told(placed)
        return Rewritten(made, graph.inputs, (*graph.placed, *placed))

    def _made(self, gm: fx.GraphModule) -> tuple[fx.GraphModule, tuple[Placed, ...]]:
        graph = written(gm)
        sites = sites_of(self.rules, graph, self.modules)
        judge(sites, self.profile)
        standing: list[Standing] = []
        found: list[Placed] = []
        taken: set[fx.Node] = set()
        names = {node.name for node in gm.graph.nodes}
        changing = [node for node in graph.graph.nodes if changed_by(node)]
        for site in sites:
            if site.refused:
                found.append(_left(site, "refused", site.refused))
                continue
            try:
                each = self._standing(gm, graph, site, names, changing)
            except Unfit as unfit:
                found.append(_left(site, "refused", str(unfit)))
                continue
            except KernelFault as fault:
                found.append(_left(site, "rejected", str(fault)))
                continue
            if taken & set(each.region.nodes):
                found.append(_left(site, "refused", "another site has a part of it"))
                continue
            taken |= set(each.region.nodes)
            names.add(each.name)
            standing.append(each)
            fact = _fact(site, each.name, "replaced", "; ".join(site.notes))
            found.append(Placed(fact, op_name(each.op).rpartition(".")[0]))
        try:
            return (placed(gm, graph, standing) if standing else gm), tuple(found)
        except (RuntimeError, KeyError) as error:  # of a graph that nobody thought of
            why = f"the kernel cannot be put into the graph: {error}"
            return gm, tuple(_left_after_all(each, why) for each in found)

    def _standing(
        self,
        gm: fx.GraphModule,
        graph: Written,
        site: Site,
        names: set[str],
        changing: Sequence[fx.Node],
    ) -> Standing:
        graph.split_bias_of(site)
        region = region_of(site.groups, changing, graph.constants)
        expandable(gm, graph, region)
        kernel = self.kernels[site.rule.address]
        case = _case(kernel, region)
        if text := self.objection(case):
            raise KernelFault(text)
        name = next(n for n in _numbered(kernel.function.name) if n not in names)
        return Standing(region, _made(case), case.returns, name)


def _left(site: Site, outcome: Outcome, why: str) -> Placed:
    return Placed(_fact(site, site.key, outcome, why))


def _left_after_all(each: Placed, why: str) -> Placed:
    if not each.op:
        return each
    return Placed(replace(each.fact, outcome="refused", why=why.splitlines()[0]))


def _fact(site: Site, key: str, outcome: Outcome, why: str) -> SiteFact:
    ops = tuple((group.op, group.module) for group in site.groups)
    return SiteFact(site.rule.address, key, ops, outcome, why)


def _numbered(name: str) -> Any:
    yield name
    number = 0
    while True:
        number += 1
        yield f"{name}_{number}"


def _case(kernel: Kernel, region: Region) -> Case:
    tensors = [None if t is None else t.meta["val"] for t in region.tensors]
    device = next((t.device.type for t in tensors if t is not None), "cpu")
    return Case(
        kernel,
        region.module(),
        tensors_like(tensors, torch_api.size_hint),
        region.constants,
        _returns(kernel, region),
        device,
    )


def _returns(kernel: Kernel, region: Region) -> tuple[int, ...]:
    """The step of each value that a kernel returns: the last one, or all.

    Raises:
        KernelFault: the reference does not return what the script's ops make.
        Unfit: a value that the graph reads would be missing.
    """
    last, every = len(region.steps) - 1, tuple(range(len(region.steps)))
    if kernel.reference is None:
        return (last,) if region.read == (last,) else every
    tensors = [tensor.meta["val"] for tensor in given(region.tensors)]
    calling = Calling(tuple(t is not None for t in region.tensors), region.constants)
    try:
        with torch_api.fake_mode_of(tensors[0]), torch.no_grad():
            values = calling.bound(kernel.reference.load())(*tensors)
    except KernelFault:
        raise
    except Exception as error:
        raise KernelFault(f"`{kernel.reference}` fails: {type(error).__name__}: {error}") from error
    if len(values) not in (1, len(every)):
        count = len(values)
        raise KernelFault(f"`{kernel.reference}` returns {count} values, for {len(every)} steps")
    returned = every if len(values) == len(every) else (last,)
    for value, step in zip(values, returned, strict=True):
        made = region.steps[step].meta["val"]
        if value.shape != made.shape or value.dtype != made.dtype:
            raise KernelFault(
                f"`{kernel.reference}` returns {_shown(value)}, and `{region.steps[step].target}` "
                f"makes {_shown(made)}"
            )
    if len(returned) == 1 and region.read != (last,):
        step = region.steps[region.read[0]]
        raise Unfit(
            f"the value of `{step.target}` is read elsewhere too, and the kernel returns the last "
            "step's alone"
        )
    return returned


def _shown(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {'x'.join(map(str, value.shape))}"


def _made(case: Case) -> torch._ops.OpOverload:
    kernel, calling = case.kernel, Calling(tuple(map(bool, case.tensors)), case.constants)
    script = case.script

    def as_written(*tensors: torch.Tensor) -> Tensors:
        values = script(*tensors)
        return tuple(values[step] for step in case.returns)

    reference = kernel.reference
    floating = tuple(t.dtype.is_floating_point for t in case.tensors if t is not None)
    content = [kernel.digest, calling.given, sorted(calling.constants.items()), case.returns]
    content += [floating, None if reference is not None else str(script.graph)]
    digest = hashlib.sha256(str(content).encode()).hexdigest()[:8]
    return made_op(
        f"{kernel.function.name}_{digest}",
        Parts(
            calling.bound(kernel.function.load()),
            as_written if reference is None else calling.bound(reference.load()),
            None if kernel.backward is None else calling.bound(kernel.backward.load()),
            len(case.returns),
            floating,
        ),
    )
