"""Messages about shares of gradients, between the controller, replicas and the core ranks; part of `libra.wire.messages`."""

from libra.wire.base import Message


class OfferShare(Message, frozen=True, tag=True):
    """Serve the sum of `step` to the core ranks; nothing more is added to it."""

    cmd: int
    step: int


class ShareNote(Message, frozen=True, tag=True):
    """What goes with one rank's part of a share: its sum of losses (before the division), its
    `libra.train.gradient_sum.Gap`, and trajectories whose loss was not finite."""

    loss: float
    gap: list[float]
    culprits: list[int]


class FetchShare(Message, frozen=True, tag=True):
    """Controller -> core rank: fetch your ranges of replica `replica`'s share of `step` from `sources` into staging.

    `sources`: one address a rank of the replica. `version` is the share's version at the replica's publisher.
    `notes` (to be counted once, by core index 0) is empty for the other core ranks.
    """

    cmd: int
    step: int
    replica: int
    version: int
    sources: tuple[str, ...]
    notes: list[ShareNote]
    deadline_s: float


class ShareOffered(Message, frozen=True, tag=True):
    """This rank of a replica serves its part of the share at `address` as `version`."""

    cmd: int
    address: str
    version: int
    note: ShareNote


class ShareFetched(Message, frozen=True, tag=True):
    """The whole of what this core rank needs of the share lies in staging."""

    cmd: int
    seconds: float


class ShareLost(Message, frozen=True, tag=True):
    """The share could not be fetched; nothing of it will be added."""

    cmd: int
    reason: str
