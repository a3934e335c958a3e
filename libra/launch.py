"""`torchrun --nproc-per-node 1+DEVICES -m libra.launch CONFIG`: what every rank of a run executes.

Rank 0 is the controller, all others are supervisors of one device each. Neither imports torch.
"""

import os
import sys

from libra.errors import ConfigError, LibraError, PreflightError


def main() -> int:
    """Exit codes: 0 the run is done or was stopped in good order, 1 it failed, 2 it cannot be run like this."""
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        print(
            "libra.launch is started by torchrun: torchrun --nproc-per-node 5 -m libra.launch CONFIG", file=sys.stderr
        )
        return 2
    if rank > 0:
        from libra.config.schema import DeadlineConfig
        from libra.rank.supervisor import main as supervise

        return supervise(rank, DeadlineConfig().find_controller_s)
    from libra.cli.arguments import parse_run
    from libra.cli.resuming import config_of, to_resume
    from libra.config import preflight
    from libra.config.rundir import claim, resolve
    from libra.controller import resume
    from libra.controller.main import main as control
    from libra.sim.plan import plan
    from libra.telemetry import tree_file

    args = parse_run(sys.argv[1:])
    try:
        run_dir = to_resume(args)
        resumption, learned = None, None
        if run_dir is not None:
            resolved, resumption = resume.resolve(run_dir, args.all_overrides())
        else:
            resolved = resolve(config_of(args), args.all_overrides())
            learned = tree_file.start(resolved.config)
        preflight.check(resolved.config, world_size, source=args.config or str(run_dir))
        if resolved.config.emulated:
            plan(resolved.config)
        (claim if resumption is None else resume.claim)(resolved)
        return control(resolved.config, resolved.run_dir, learned, resumption)
    except (ConfigError, PreflightError) as e:
        print(f"libra: {e}", file=sys.stderr)
        return 2
    except LibraError as e:
        print(f"libra: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
