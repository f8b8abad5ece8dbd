"""What names mean: one table for every architecture.

A parameter is looked up by the path of its module, from the block inward. A name is only a guess,
which shapes confirm or reject.
"""

import re
from collections.abc import Sequence
from typing import Literal

from mupscale.reading.roles import Role

_ATTENTION = r"(?:attn|attention|self_attention|mixer|self)"

# (pattern of the owner's path inside its block, role of its weight): the first match counts.
_MATRICES: Sequence[tuple[str, Role]] = [
    # The indexer of sparse attention chooses keys; its matrices are ordinary ones.
    (r"(?:.*\.)?indexer\.(?:wk|k_proj|weights_proj)", "hidden"),
    # A norm with a low-rank gate: its second matrix does not end a residual branch.
    (r"(?:.*\.)?\w*norm\w*\.mlp\.fc1", "low_rank_down"),
    (r"(?:.*\.)?\w*norm\w*\.mlp\.fc2", "low_rank_up"),
    # Adapters: base_layer is the frozen weight, lora_A and lora_B are the two factors.
    (r"(?:.*\.)?lora_A(?:\.\w+)?", "low_rank_down"),
    (r"(?:.*\.)?lora_B(?:\.\w+)?", "low_rank_up"),
    # Low-rank attention (MLA), before the plain projections that its names contain.
    (
        r"(?:q_a_proj|kv_a_proj_with_mqa|kv_a_proj|q_down_proj|kv_down_proj|wq_a|wkv_a)",
        "low_rank_down",
    ),
    (r"(?:q_b_proj|kv_b_proj|q_gate_proj|q_up_proj|kv_up_proj|wq_b|wkv_b)", "low_rank_up"),
    (r"(?:qkv_proj|query_key_value|c_attn|Wqkv|wqkv|qkv|in_proj_qkv_fused)", "fused_qkv"),
    (r"(?:q_proj|query|query_proj|Wq|wq|project_q|q_lin)", "query"),
    (r"(?:k_proj|key|key_proj|Wk|wk|project_k|k_lin)", "key"),
    (r"(?:v_proj|value|value_proj|Wv|wv|project_v|v_lin)", "value"),
    (r"(?:.*\.)?DenseReluDense\.wo", "mlp_out"),  # T5's feed-forward part
    (r"(?:o_proj|wo|attention_out|out_lin)", "attention_output"),
    (
        rf"(?:.*\.)?[\w]*{_ATTENTION}(?:\.[\w]+)*\.(?:out_proj|dense|c_proj|Wo|proj|linear_out|output)",
        "attention_output",
    ),
    (rf"(?:.*\.)?[\w]*{_ATTENTION}(?:\.[\w]+)*\.(?:gate_proj|g_proj)", "hidden"),
    # Mixtures of experts. The shape must confirm a router: from the width to a number of experts.
    (
        r"(?:.*\.)?experts\.\d+\..*?(?:gate_proj|up_proj|w1|w3|fc1|gate_up_proj|linear_fc1)",
        "expert_in",
    ),
    (r"(?:.*\.)?experts\.\d+\..*?(?:down_proj|w2|fc2|linear_fc2)", "expert_out"),
    (r"(?:.*\.)?experts\.(?:gate_up_proj|gate_proj|up_proj|w1|w3|v1)", "expert_in"),
    (r"(?:.*\.)?experts\.(?:down_proj|w2)", "expert_out"),
    (
        r"(?:.*\.)?(?:mlp|moe|ffn|feed_forward|block_sparse_moe|mixer|router|gate)\.(?:gate|router|classifier)(?:\.layer|\.wg)?",
        "router",
    ),
    (r"(?:.*\.)?shared_expert_gate", "router"),
    # Feed-forward.
    (
        r"(?:gate_up_proj|gate_proj|up_proj|fc1|c_fc|fc_in|dense_h_to_4h|w1|w3|lin1|Wi|wi|wi_0|wi_1|fc|intermediate\.dense)",
        "mlp_in",
    ),
    (r"(?:ffn\.0|w_in\.w_0|w_in\.w_1)", "mlp_in"),
    (r"(?:ffn\.2|w_out)", "mlp_out"),
    (r"(?:down_proj|fc2|fc_out|dense_4h_to_h|w2|lin2|output\.dense)", "mlp_out"),
    (
        r"(?:.*\.)?(?:mlp|ffn|ff|feed_forward)\.(?:c_proj|Wo|wo|dense|out_proj|proj|linear_out)",
        "mlp_out",
    ),
]
_COMPILED: Sequence[tuple[re.Pattern[str], Role]] = [
    (re.compile(rf"(?:^|.*\.){pattern}$"), role) for pattern, role in _MATRICES
]


_OUTSIDE = re.compile(r"(?:^|.*\.)(?:lm_head|head|predictions|transform)\.dense$")


def outer_matrix_role(path: str) -> Role | None:
    """The role of a matrix outside of the blocks that is neither embedding nor readout.

    >>> outer_matrix_role("lm_head.dense")
    'hidden'
    """
    return "hidden" if _OUTSIDE.match(path) else None


def matrix_role(path: str) -> Role | None:
    """The role of a matrix inside a block, by its module's path from the block inward.

    >>> matrix_role("self_attn.k_proj"), matrix_role("attn.c_proj"), matrix_role("mlp.c_proj")
    ('key', 'attention_output', 'mlp_out')
    >>> matrix_role("mixer.in_proj") is None
    True
    """
    path = path.removesuffix(".base_layer")
    return next((role for pattern, role in _COMPILED if pattern.match(path)), None)


Layout = Literal["one after the other", "by group"]


def fused_layout(attention: type, projection: str, repetitions: int) -> Layout | None:
    """How a fused matrix of transformers holds q, k and v, by the class of its attention.

    One after the other (all queries, all keys, all values), or by group (for each key/value head
    its queries, its key and its value), which without sharing is q, k, v head by head. None for
    other classes: only a forward pass shows their layout.
    """
    name = attention.__name__
    known = attention.__module__.startswith(("transformers.", "mupscale."))
    if not known or name.startswith("CodeGen"):
        return None
    head_by_head = name.startswith("GPTBigCode") and repetitions == 1
    return "by group" if projection == "query_key_value" or head_by_head else "one after the other"
