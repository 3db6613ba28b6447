"""Which op families an op belongs to, by name.

Both the ops a script calls (`aten.layer_norm`, `aten.linear`) and what decomposition leaves of them
(`aten.var_mean`, `aten.addmm`) are listed where the meaning is clear; `aten.mul` inside a norm is
`pointwise`, nothing more. An op may belong to several families. Names only: no torch here.
"""

from __future__ import annotations

from functools import cache


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MEMBERS: dict[str, frozenset[str]] = {
    "matmul": _names(
        "mm bmm addmm baddbmm addbmm matmul linear linear_backward addmv mv dot vdot einsum "
        "_scaled_mm _int_mm _grouped_mm addr outer"
    ),
    "conv": _names(
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
        "_convolution convolution_backward convolution_overrideable cudnn_convolution "
        "mkldnn_convolution _slow_conv2d_forward thnn_conv2d conv_depthwise3d"
    ),
    # The bias operand of a linear or convolution; `convolution` and `linear` count only with one.
    "bias": _names("addmm baddbmm addmv convolution _convolution linear conv1d conv2d conv3d"),
    "norm": _names(
        "layer_norm native_layer_norm native_layer_norm_backward batch_norm native_batch_norm "
        "_native_batch_norm_legit _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training native_batch_norm_backward batch_norm_backward "
        "cudnn_batch_norm group_norm native_group_norm native_group_norm_backward instance_norm "
        "rms_norm _fused_rms_norm _fused_rms_norm_backward var_mean"
    ),
    "softmax": _names(
        "softmax _softmax _softmax_backward_data log_softmax _log_softmax "
        "_log_softmax_backward_data _safe_softmax"
    ),
    "attention": _names(
        "scaled_dot_product_attention _scaled_dot_product_attention_math "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_cudnn_attention_backward _flash_attention_forward "
        "_flash_attention_backward _efficient_attention_forward _efficient_attention_backward "
        "flex_attention flex_attention_backward"
    ),
    "embedding": _names(
        "embedding embedding_dense_backward embedding_backward _embedding_bag embedding_bag "
        "_embedding_bag_dense_backward"
    ),
    "loss": _names(
        "cross_entropy_loss nll_loss nll_loss_forward nll_loss_backward nll_loss2d_forward "
        "nll_loss2d_backward nll_loss_nd mse_loss mse_loss_backward l1_loss smooth_l1_loss "
        "smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy "
        "binary_cross_entropy_backward binary_cross_entropy_with_logits kl_div "
        "soft_margin_loss"
    ),
    "dropout": _names(
        "dropout native_dropout native_dropout_backward feature_dropout alpha_dropout"
    ),
    "random": _names(
        "rand rand_like randn randn_like randint randint_like randperm bernoulli uniform normal "
        "exponential multinomial poisson native_dropout dropout feature_dropout alpha_dropout "
        "inductor_random inductor_randint philox_rand"
    ),
    "reduction": _names(
        "sum mean amax amin max min prod var std var_mean std_mean argmax argmin all any norm "
        "linalg_vector_norm logsumexp count_nonzero cumsum cumprod"
    ),
    "pointwise": _names(
        "add sub rsub mul div neg abs exp exp2 log log2 log1p sqrt rsqrt pow reciprocal square "
        "sin cos tan tanh tanh_backward sigmoid sigmoid_backward erf erfc relu relu6 leaky_relu "
        "leaky_relu_backward gelu gelu_backward silu silu_backward mish hardswish "
        "hardswish_backward hardtanh hardtanh_backward elu elu_backward softplus "
        "softplus_backward threshold_backward where masked_fill clamp clamp_min clamp_max "
        "minimum maximum eq ne lt le gt ge logical_and logical_or logical_not bitwise_and "
        "bitwise_or bitwise_not sign floor ceil round trunc fmod remainder addcmul addcdiv lerp "
        "convert_element_type _to_copy to clone copy fma"
    ),
}

FAMILIES: tuple[str, ...] = tuple(MEMBERS)

# Ops whose bias is an optional operand, and its place among the arguments.
BIAS_OPERAND = {
    "convolution": 2,
    "_convolution": 2,
    "linear": 2,
    "conv1d": 2,
    "conv2d": 2,
    "conv3d": 2,
}

# Layout only: `->` of a pattern flows through them, and they move no bytes.

_CASTS = _names("_to_copy convert_element_type to")
LAYOUT = _names(
    "view _unsafe_view reshape t transpose permute expand expand_as detach alias squeeze "
    "unsqueeze select slice split split_with_sizes unbind chunk narrow as_strided diagonal "
    "unfold movedim flatten view_as lift_fresh"
)


@cache
def families_of(op: str) -> tuple[str, ...]:
    """Families of an op by its name (`aten.addmm.default`, `aten::addmm`, `aten.add_.Tensor`).

    An optional bias is assumed to be there; the recorder, which sees operands, knows better.
    """
    base = base_name(op)
    return tuple(family for family, members in MEMBERS.items() if base in members)


@cache
def base_name(op: str) -> str:
    """The op without namespace, overload and the in-place underscore; empty for foreign ops.

    Only torch's own ops have families: a custom op called `sum` may do anything.
    """
    namespace, _, rest = op.replace("::", ".").partition(".")
    if namespace not in ("aten", "prims", "higher_order") or not rest:
        return ""
    name = rest.split(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_cast(op: str) -> bool:
    """Whether an op only changes the dtype of a tensor."""
    return base_name(op) in _CASTS


def is_layout(op: str) -> bool:
    """Whether the op only looks at the same memory in another way."""
    return base_name(op) in LAYOUT
