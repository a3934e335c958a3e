"""Which emulated role a rank plays: imported by a role process once it knows what it is to be."""

from typing import Literal

from libra.rank.emulated_role import EmulatedRole


def role_class(role: Literal["trainer", "rollout", "gradient"]) -> type[EmulatedRole]:
    """Imports no more than the role needs."""
    match role:
        case "trainer":
            from libra.rank.emulated_trainer import EmulatedTrainer

            return EmulatedTrainer
        case "rollout":
            from libra.rank.emulated_engine import EmulatedEngine

            return EmulatedEngine
        case "gradient":
            from libra.rank.emulated_gradient import EmulatedGradient

            return EmulatedGradient
