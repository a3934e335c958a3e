"""The virtual shell: the live job's core, driven in virtual time by machines that take as long as the cost model says.

Plan (plan)          a configuration checked and completed: costs of every engine shape, the trainer's layout
Source (source)      trajectories and rewards, from a generator, a trace or a run's journal (recorded)
Machine (machine)    one engine: continuous batching, prefix cache, KV room, weights swapped between steps
Simulation (shell)   the event heap: carries out the core's commands and answers them as the live shell does
Recorder (report)    what `summary.json` says, and stage times, utilisation, tail, bounds (bound)
"""
