"""The `vllm` engine: each tensor-parallel rank is one of our role processes and holds an `LLMEngine` of its own.

    leader ── Tick: turns, cuts, whether to vote on weights ──> all ranks (`lockstep`)
    each rank: apply the tick to its own scheduler (`engine`), load weights in place (`loading`), step

Nothing else in the project imports vLLM; it reads its environment when it is imported, so that is prepared here. What depends
on a vendor's devices is in `device`.
"""

from libra.engine.vllm.device import prepare

prepare()
