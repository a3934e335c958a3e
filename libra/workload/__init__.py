"""What there is to do: trajectories from a file (`trace`, `swe`, `mooncake`) or made up (`generate`, `spec`, `law`)."""

from libra.workload.generate import Workload
from libra.workload.spec import SPECS, WorkloadSpec
from libra.workload.trace import TraceTrajectory, TraceTurn, read_trace, write_trace

__all__ = ["SPECS", "TraceTrajectory", "TraceTurn", "Workload", "WorkloadSpec", "read_trace", "write_trace"]
