"""Every block and attribute of the language: names, types, defaults, and what is built.

The one table that reading, checks, completion of defaults, `explain` and the README rely on. A new
attribute is one line here and one field in `clauses.py`; the grammar does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sgplan.grammar.compound import Call, ListOf, OneOf, OneOrMore, Parameter, either
from sgplan.grammar.literals import (
    DEVICES,
    DTYPES,
    SWITCHES,
    Dynamic,
    Grid,
    Interleaved,
    MinGain,
    Pad,
    Stage,
    Triton,
    Weighted,
)
from sgplan.grammar.quantities import (
    LINK_RATE,
    MODULES,
    PERCENT,
    SAMPLE_RATE,
    SIZE,
    TIME,
    Count,
    NumberRange,
    Real,
    Scalar,
    StepCount,
    WholeRange,
)
from sgplan.grammar.selectors import (
    FAMILIES,
    Glob,
    GuardPathType,
    OneSelector,
    Op,
    PatternType,
)
from sgplan.grammar.values import (
    FILE,
    FILE_AND_NAME,
    KERNEL,
    MODEL_LABEL,
    QUALIFIED,
    String,
    ValueType,
    Word,
    words,
)

LabelRule = Literal["required", "optional", "forbidden"]


def _never(value: Any) -> bool:
    return False


def _always(value: Any) -> bool:
    return True


def _any_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _of_several_steps(value: Any) -> bool:
    return len(value.steps) > 1


def _above(limit: int) -> Callable[[Any], bool]:
    return lambda value: value > limit


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One attribute.

    Attributes:
        name, type: as written.
        default: as it would be written; in prose where no spelling exists; None when there is none.
        required: whether a block without it is incomplete.
        unbuilt: whether a value still answers "not built yet".
    """

    name: str
    type: ValueType
    default: str | None = None
    required: bool = False
    unbuilt: Callable[[Any], bool] = _never


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """One block kind.

    Attributes:
        kind: its name.
        label: whether it bears one.
        does: what it is for, after "the block that".
        built: whether any of it works yet.
        attributes: in the order in which documentation lists them.
    """

    kind: str
    label: LabelRule
    does: str
    built: bool
    attributes: tuple[AttributeSpec, ...]

    def attribute(self, name: str) -> AttributeSpec | None:
        """The attribute of that name."""
        return next((spec for spec in self.attributes if spec.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.attributes)


_A = AttributeSpec
_COUNT = Count()
_POSITIVE = Count(least=1)
_GLOBS = OneOrMore(Glob())
_PATTERN = PatternType()
_ON_OFF = words("on", "off")
_TOLERANCE = Real("a tolerance", "1e-6")

_USE = _A("use", _ON_OFF, "on")
_MODEL = _A("model", MODEL_LABEL)
_PRIORITY = _A("priority", Count("a whole number", "10", -1_000_000))
_RULE = (_USE, _MODEL, _PRIORITY)
_SELECT = (_A("match", _PATTERN, required=True), _A("in", _GLOBS), _A("except", _GLOBS))
_EXPECT = (_A("expect", _COUNT), _A("on_miss", words("error", "warn"), "error"))

_TRITON = Call(
    "triton",
    Triton,
    (Parameter("kernel", KERNEL),),
    (
        Parameter("reference", FILE_AND_NAME),
        Parameter("backward", FILE_AND_NAME),
        Parameter("tolerance", _TOLERANCE),
    ),
)
_GAIN = Real("a ratio", "1.0")
_MIN_GAIN = Call("min_gain", MinGain, (Parameter("ratio", _GAIN),))
_STAGE = Call("stage", Stage, (Parameter("index", _COUNT),), rest=Glob())
_INTERLEAVED = Call("interleaved", Interleaved, (Parameter("chunks", Count(least=2)),))
_GRID = Call("grid", Grid, (Parameter("file", FILE),))
_WEIGHTED = Call("weighted", Weighted, (Parameter("argument", String()),))
_PAD = Call(
    "pad",
    Pad,
    named=(
        Parameter("with", Real("a number", "0", -1e30), required=True),
        Parameter("ignore", Count("a whole number", "-100", -1_000_000)),
        Parameter("mask", String("the name of an input", '"attention_mask"')),
        Parameter("weight", String("the name of an input", '"weight"')),
    ),
)
_DYNAMIC = Call(
    "dynamic",
    Dynamic,
    named=(
        Parameter("init", Real("a number", "65536")),
        Parameter("growth", Real("a number", "2", 1.0)),
        Parameter("backoff", Real("a number", "0.5")),
        Parameter("every", _POSITIVE),
    ),
)
_ADDRESS = String("an address", '"10.0.0.1:7000"', r"[^:\s]+:[0-9]{1,5}")
_GUARDED = words(*DTYPES, *DEVICES, *SWITCHES)

BLOCKS: tuple[BlockSpec, ...] = (
    BlockSpec(
        "model",
        "required",
        "names one of several models of the script",
        True,
        (_USE, _A("is", QUALIFIED, required=True), _A("nth", _COUNT, "0")),
    ),
    BlockSpec(
        "mesh",
        "forbidden",
        "lays the ranks out along axes",
        True,
        (
            _USE,
            _A("data", either(_POSITIVE, words("rest")), "rest"),
            _A("pipe", _POSITIVE, "1", unbuilt=_above(1)),
            _A("hosts", either(_POSITIVE, words("auto")), "auto", unbuilt=_always),
            _A("link", either(LINK_RATE, words("measured")), "measured", unbuilt=_always),
        ),
    ),
    BlockSpec(
        "capture",
        "optional",
        "says what becomes a graph and which engine runs it",
        True,
        (
            _USE,
            _MODEL,
            _A("graph", words("whole", "prefer"), "prefer"),
            _A("dynamic", words("auto", "on", "off"), "auto"),
            _A("engine", words("auto", "inductor", "eager", "as_written"), "auto"),
            _A("eval", words("as_written", "compiled"), "as_written"),
            _A("agree", words("contract", "strict"), "contract"),
            _A("autotune", words("off", "on", "max"), "off"),
            _A("cuda_graphs", words("off", "prefer", "required"), "off"),
            _A("region", QUALIFIED),
            _A("recompiles", _COUNT, "8"),
            _A("rounding", words("default", "as_eager"), "default"),
            _A("random", words("default", "exact"), "default"),
        ),
    ),
    BlockSpec(
        "fuse",
        "required",
        "makes one kernel of several ops",
        True,
        (
            *_RULE,
            *_SELECT,
            _A(
                "with",
                either(words("inductor"), _TRITON),
                "inductor",
            ),
            _A(
                "where",
                ListOf(either(words("same_layout", "same_dtype", "single_use"), _MIN_GAIN), 0),
                "[same_layout]",
            ),
            *_EXPECT,
        ),
    ),
    BlockSpec(
        "separate",
        "required",
        "keeps ops out of one kernel",
        True,
        (*_RULE, *_SELECT, *_EXPECT),
    ),
    BlockSpec(
        "operator",
        "required",
        "admits a custom operator",
        True,
        (
            _USE,
            _A("op", Op(), required=True),
            _A("from", String("a path", '"ops.py"')),
            _A("fake", words("required", "prefer"), "required"),
            _A("check", words("opcheck", "off"), "opcheck"),
        ),
    ),
    BlockSpec(
        "partition",
        "forbidden",
        "cuts the model into stages",
        False,
        (
            _USE,
            _A("by", words("metis", "balanced", "manual"), "metis"),
            _A("cuts", _GLOBS),
            _A("balance", PERCENT, "5%"),
            _A("cost", words("measured", "flops", "memory"), "measured"),
            _A("keep_whole", _GLOBS),
            _A("pin", OneOrMore(_STAGE)),
        ),
    ),
    BlockSpec(
        "schedule",
        "forbidden",
        "orders microbatches through the stages",
        False,
        (
            _USE,
            _A("kind", either(words("gpipe", "1f1b", "zero_bubble"), _INTERLEAVED, _GRID), "1f1b"),
            _A("microbatches", _POSITIVE),
            _A("loss", either(words("auto", "mean", "sum"), _WEIGHTED), "auto"),
            _A("on_fallback", words("error", "gpipe"), "gpipe"),
        ),
    ),
    BlockSpec(
        "sync",
        "optional",
        "reduces gradients across axis `data`",
        True,
        (
            _USE,
            _MODEL,
            _A("bucket", SIZE, "25MiB"),
            _A("first_bucket", SIZE, "1MiB"),
            _A("overlap", words("required", "prefer", "off"), "prefer"),
            _A("wire", words("as_written", "bf16", "fp16"), "as_written"),
            _A(
                "transport",
                words("auto", "process_group", "shared_memory"),
                "auto",
                unbuilt=_any_of("shared_memory"),
            ),
            _A("by", words("auto", "in_graph", "hooks", "stock"), "auto"),
            _A("timeout", TIME, "as the script says"),
        ),
    ),
    BlockSpec(
        "update",
        "optional",
        "says how optimizers step",
        True,
        (
            _USE,
            _MODEL,
            _A("optimizer", words("as_written", "fused", "compiled"), "as_written"),
            _A("when", words("step", "in_backward"), "step", unbuilt=_any_of("in_backward")),
        ),
    ),
    BlockSpec(
        "guard",
        "required",
        "says what may vary between calls",
        True,
        (
            *_RULE,
            _A("on", GuardPathType(), required=True),
            _A(
                "allow",
                either(NumberRange(), ListOf(either(Scalar(), _GUARDED, String()))),
                "first value seen",
            ),
            _A("otherwise", either(words("recompile", "eager", "error"), _PAD), "recompile"),
            _A("budget", _COUNT, "4"),
            _A("spent", words("error", "eager"), "error"),
        ),
    ),
    BlockSpec(
        "precision",
        "required",
        "sets number formats over a range of steps",
        True,
        (
            *_RULE,
            _A("steps", WholeRange(0), "0.."),
            _A("match", _PATTERN, unbuilt=_of_several_steps),
            _A("in", _GLOBS),
            _A("except", _GLOBS),
            _A("compute", words("as_written", "fp32", "bf16", "fp16"), "as_written"),
            _A("keep_fp32", OneOrMore(OneSelector())),
            _A("params", words("as_written", "bf16", "fp16"), "as_written"),
            _A("master", words("fp32", "off")),
            _A(
                "loss_scale",
                either(words("auto", "off"), Real("a number", "1024"), _DYNAMIC),
                "auto",
            ),
        ),
    ),
    BlockSpec(
        "recompute",
        "optional",
        "computes activations again instead of saving them",
        True,
        (
            *_RULE,
            _A("in", _GLOBS),
            _A("match", _PATTERN),
            _A("memory", PERCENT),
            _A("every", MODULES),
        ),
    ),
    BlockSpec(
        "checkpoint",
        "forbidden",
        "saves the state of training",
        False,
        (
            _USE,
            _A("every", either(StepCount(), TIME), "500steps"),
            _A("keep", _POSITIVE, "3"),
            _A("to", FILE, "the run folder"),
            _A("mode", words("async", "sync"), "async"),
            _A("on_signal", words("save", "off"), "save"),
            _A("on_error", words("continue", "stop"), "continue"),
        ),
    ),
    BlockSpec(
        "recover",
        "forbidden",
        "goes on when a rank dies",
        False,
        (
            _USE,
            _A("restarts", _COUNT, "3"),
            _A("heartbeat", TIME, "1s"),
            _A("timeout", TIME, "60s"),
            _A("resume", words("replay", "rerun", "script", "off"), "replay"),
            _A("spare", words("warm", "off"), "off"),
            _A("parent_lost", words("end", "finish"), "end"),
        ),
    ),
    BlockSpec(
        "host",
        "forbidden",
        "places ranks on cores and memory",
        False,
        (
            _USE,
            _A("cores", either(words("auto"), ListOf(either(_COUNT, WholeRange(0)))), "auto"),
            _A("numa", words("auto", "off"), "auto"),
            _A("threads", either(_POSITIVE, words("auto")), "auto"),
            _A("malloc", words("tuned", "as_written"), "as_written"),
            _A("memory_format", words("auto", "as_written"), "as_written"),
            _A("chunk", either(SIZE, words("adaptive")), "adaptive"),
        ),
    ),
    BlockSpec(
        "control",
        "forbidden",
        "sets the address of the control plane",
        False,
        (
            _USE,
            _A("listen", either(words("loopback"), _ADDRESS), "loopback"),
            _A("message_max", SIZE, "128MiB"),
        ),
    ),
    BlockSpec(
        "verify",
        "forbidden",
        "says how close to the plain run the planned one must be",
        True,
        (
            _USE,
            _A("forward", _TOLERANCE, "from the declared precision"),
            _A("gradient", _TOLERANCE, "from the declared precision"),
            _A("steps", _POSITIVE, "3"),
            _A("seed", _COUNT),
        ),
    ),
    BlockSpec(
        "slo",
        "forbidden",
        "sets service levels",
        True,
        (
            _USE,
            _A("step_p99", TIME),
            _A("recovery", TIME, unbuilt=_always),
            _A("throughput", SAMPLE_RATE),
            _A("enforce", _ON_OFF, "off"),
        ),
    ),
    BlockSpec("export", "forbidden", "is reserved", False, ()),
)

SPEC_OF = {spec.kind: spec for spec in BLOCKS}
KINDS = tuple(SPEC_OF)

OVERRIDE_CONDITIONS = (
    _A("world", WholeRange(1), "every size"),
    _A("device", words("cpu", "cuda"), "every device"),
)

ATTRIBUTE_NAMES = frozenset(name for spec in BLOCKS for name in spec.names) | {"world", "device"}


def blocks_with(attribute: str) -> tuple[str, ...]:
    """The kinds that have an attribute of that name."""
    return tuple(spec.kind for spec in BLOCKS if attribute in spec.names)


def _words_of(type_: ValueType) -> set[str]:
    if isinstance(type_, Word):
        return set(type_.words)
    if isinstance(type_, OneOf):
        return {word for option in type_.types for word in _words_of(option)}
    if isinstance(type_, ListOf | OneOrMore):
        return _words_of(type_.item)
    return {type_.name} if isinstance(type_, Call) else set()


# What a `let` may not be called: it would be read as the name or as the word, depending on place.
RESERVED = (
    frozenset(FAMILIES)
    | frozenset(KINDS)
    | frozenset(word for spec in BLOCKS for a in spec.attributes for word in _words_of(a.type))
    | {"override", "let", "sgplan", "input", "true", "false", "cpu", "cuda"}
)
