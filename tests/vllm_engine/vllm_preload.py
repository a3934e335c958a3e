"""What the server that test roles are forked from imports: the imports of a spare child."""

from libra.rank.vllm_role import preload

preload()
