"""Checked scalar types that the configuration, its parts and the trace formats share."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

PosInt = Annotated[int, Meta(ge=1)]
NatInt = Annotated[int, Meta(ge=0)]
PosFloat = Annotated[float, Meta(gt=0)]
NonNegFloat = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
        description="1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit",
    ),
]
Mode = Literal["async", "one-step-off", "sync"]


class Table(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration: unknown keys are refused."""
