"""How much a trajectory still needs, learned from the tool returns of those before it. Start with `tree`.

signals in, at the end a lesson ──> tree ──> node ──> sketch          (what is kept)
predict, slices, paper          <── tree <── forecast                (how it is answered)
"""

from libra.core.causality.forecast import Known, Residual
from libra.core.causality.saved import SavedTree, restore, save, transplanted
from libra.core.causality.sketch import TOKENS, TOOL_S, TURNS
from libra.core.causality.tree import CausalityTree, TreeConfig

__all__ = [
    "TOKENS", "TOOL_S", "TURNS", "CausalityTree", "Known", "Residual", "SavedTree", "TreeConfig", "restore", "save",
    "transplanted",
]  # fmt: skip
